package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// runAgents connects many agents, each over a TLS connection of its own, says so, and
// serves their dials until its stdin ends.
func runAgents(args []string) error {
	flags := flag.NewFlagSet("agents", flag.ExitOnError)
	server := flags.String("server", "", "host:port of the proxy-server's agent port")
	count := flags.Int("count", 1, "number of agents")
	cert := flags.String("cert", "", "client certificate")
	key := flags.String("key", "", "its key")
	ca := flags.String("ca", "", "CA of the server")
	_ = flags.Parse(args)
	config, err := clientTLS(*cert, *key, *ca)
	if err != nil {
		return err
	}
	began := time.Now()
	for i := range *count {
		id := fmt.Sprintf("agent-%05d", i)
		a, err := startAgent(*server, id, config)
		if err != nil {
			return fmt.Errorf("agent %d: %w", i, err)
		}
		go func() { fmt.Fprintf(os.Stderr, "load agents: %s: %v\n", id, a.serve()) }()
	}
	if err := printJSON(idleResult{Open: *count, OpenSeconds: time.Since(began).Seconds()}); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

func clientTLS(certFile, keyFile, caFile string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New("--ca holds no certificate")
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}, nil
}

// agent is one agent stream and the connections it has dialled.
type agent struct {
	conn    *grpc.ClientConn
	stream  grpc.ClientStream
	sending sync.Mutex
	mutex   sync.Mutex
	lastID  int64
	conns   map[int64]net.Conn
}

func startAgent(server, id string, config *tls.Config) (*agent, error) {
	conn, err := grpc.NewClient("passthrough:///"+server,
		grpc.WithTransportCredentials(credentials.NewTLS(config.Clone())))
	if err != nil {
		return nil, err
	}
	stream, err := openStream(conn, id)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &agent{conn: conn, stream: stream, conns: map[int64]net.Conn{}}, nil
}

// openStream returns once the server has admitted the agent.
func openStream(conn *grpc.ClientConn, id string) (grpc.ClientStream, error) {
	ctx := metadata.AppendToOutgoingContext(context.Background(), "agentid", id, "agentidentifiers", "")
	shape := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	stream, err := conn.NewStream(ctx, shape, "/AgentService/Connect")
	if err != nil {
		return nil, err
	}
	header, err := stream.Header()
	if err != nil {
		return nil, err
	}
	if len(header.Get("serverid")) != 1 {
		return nil, fmt.Errorf("the server sent no server id: %v", stream.RecvMsg(&client.Packet{}))
	}
	return stream, nil
}

// serve returns why the stream ended.
func (a *agent) serve() error {
	defer a.conn.Close()
	for {
		packet := &client.Packet{}
		if err := a.stream.RecvMsg(packet); err != nil {
			return err
		}
		switch packet.Type {
		case client.PacketType_DIAL_REQ:
			go a.dial(packet.GetDialRequest())
		case client.PacketType_DATA:
			if conn := a.find(packet.GetData().ConnectID); conn != nil {
				_, _ = conn.Write(packet.GetData().Data)
			}
		case client.PacketType_CLOSE_REQ:
			a.close(packet.GetCloseRequest().ConnectID)
		}
	}
}

func (a *agent) send(packet *client.Packet) {
	a.sending.Lock()
	defer a.sending.Unlock()
	_ = a.stream.SendMsg(packet)
}

func (a *agent) dial(request *client.DialRequest) {
	response := &client.DialResponse{Random: request.Random}
	conn, err := net.DialTimeout(request.Protocol, request.Address, 5*time.Second)
	if err != nil {
		response.Error = err.Error()
	} else {
		response.ConnectID = a.keep(conn)
	}
	a.send(&client.Packet{
		Type:    client.PacketType_DIAL_RSP,
		Payload: &client.Packet_DialResponse{DialResponse: response},
	})
	if err == nil {
		a.pump(conn, response.ConnectID)
	}
}

func (a *agent) keep(conn net.Conn) int64 {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.lastID++
	a.conns[a.lastID] = conn
	return a.lastID
}

func (a *agent) find(id int64) net.Conn {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.conns[id]
}

func (a *agent) pump(conn net.Conn, id int64) {
	buffer := make([]byte, 4096)
	for {
		n, err := conn.Read(buffer)
		if n > 0 {
			a.send(&client.Packet{
				Type:    client.PacketType_DATA,
				Payload: &client.Packet_Data{Data: &client.Data{ConnectID: id, Data: buffer[:n]}},
			})
		}
		if err != nil {
			a.close(id)
			return
		}
	}
}

// close answers once per connection, whichever side ended it.
func (a *agent) close(id int64) {
	a.mutex.Lock()
	conn := a.conns[id]
	delete(a.conns, id)
	a.mutex.Unlock()
	if conn == nil {
		return
	}
	conn.Close()
	a.send(&client.Packet{
		Type:    client.PacketType_CLOSE_RSP,
		Payload: &client.Packet_CloseResponse{CloseResponse: &client.CloseResponse{ConnectID: id}},
	})
}
