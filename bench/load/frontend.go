package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
)

// dialTimeout bounds one dial through a tunnel, as kube-apiserver bounds its own.
const dialTimeout = 30 * time.Second

// frontend says how to reach the target: directly, through a proxy-server's socket, or through a
// socket that leads to this one target.
type frontend struct {
	kind   string
	uds    string
	target string
}

func frontendFlags(flags *flag.FlagSet) *frontend {
	f := &frontend{}
	flags.StringVar(&f.kind, "frontend", "http-connect", "http-connect, grpc, socket or direct")
	flags.StringVar(&f.uds, "uds", "", "the proxy-server's unix socket; with --frontend=socket: the directory of PORT.sock")
	flags.StringVar(&f.target, "target", "", "host:port to reach through the tunnel")
	return f
}

func (f *frontend) dial() (net.Conn, error) {
	return f.dialTo(f.target, dialTimeout)
}

func (f *frontend) dialTo(target string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	switch f.kind {
	case "direct":
		return (&net.Dialer{}).DialContext(ctx, "tcp", target)
	case "socket":
		_, port, err := net.SplitHostPort(target)
		if err != nil {
			return nil, fmt.Errorf("--target=%s: %w", target, err)
		}
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(f.uds, port+".sock"))
	case "http-connect":
		return dialConnect(ctx, f.uds, target)
	case "grpc":
		return dialGRPC(ctx, f.uds, target)
	}
	return nil, fmt.Errorf("--frontend=%s: want http-connect, grpc, socket or direct", f.kind)
}

// dialGRPC opens what kube-apiserver opens: one gRPC connection and stream per dial.
func dialGRPC(ctx context.Context, uds, target string) (net.Conn, error) {
	tunnel, err := client.CreateSingleUseGrpcTunnelWithContext(ctx, context.Background(), uds,
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", address)
		}),
		grpc.WithBlock(),
		grpc.WithReturnConnectionError(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	)
	if err != nil {
		return nil, err
	}
	return tunnel.DialContext(ctx, "tcp", target)
}

func dialConnect(ctx context.Context, uds, target string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", uds)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	early, err := handshake(conn, target)
	if err != nil {
		conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	if len(early) == 0 {
		return conn, nil
	}
	return &earlyConn{Conn: conn, early: early}, nil
}

// handshake returns the tunnelled bytes that arrived together with the answer.
func handshake(conn net.Conn, target string) ([]byte, error) {
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target); err != nil {
		return nil, err
	}
	answer := make([]byte, 4096)
	filled := 0
	for {
		n, err := conn.Read(answer[filled:])
		if err != nil {
			return nil, fmt.Errorf("CONNECT: %w after %q", err, answer[:filled])
		}
		filled += n
		head, rest, complete := bytes.Cut(answer[:filled], []byte("\r\n\r\n"))
		if complete {
			return rest, checkStatus(head, rest)
		}
		if filled == len(answer) {
			return nil, errors.New("CONNECT: the answer's header does not end within 4096 bytes")
		}
	}
}

func checkStatus(head, rest []byte) error {
	if len(head) < 12 || !bytes.Equal(head[9:12], []byte("200")) {
		line, _, _ := bytes.Cut(head, []byte("\r\n"))
		return fmt.Errorf("CONNECT: %s: %s", line, rest)
	}
	return nil
}

// earlyConn gives out the bytes that came with the handshake before it reads on.
type earlyConn struct {
	net.Conn
	early []byte
}

func (c *earlyConn) Read(b []byte) (int, error) {
	if len(c.early) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.early)
	c.early = c.early[n:]
	return n, nil
}

// dialAll opens count connections, eight at a time.
func (f *frontend) dialAll(count int) ([]net.Conn, error) {
	conns := make([]net.Conn, count)
	failures := make(chan error, count)
	slots := make(chan struct{}, 8)
	for i := range conns {
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			conn, err := f.dial()
			conns[i] = conn
			failures <- err
		}()
	}
	for range conns {
		if err := <-failures; err != nil {
			return nil, err
		}
	}
	return conns, nil
}

func closeAll(conns []net.Conn) {
	done := make(chan struct{}, len(conns))
	for _, conn := range conns {
		go func() {
			conn.Close()
			done <- struct{}{}
		}()
	}
	// A peer that is stuck may hold a close back: the figures are taken already.
	deadline := time.After(3 * time.Second)
	for range conns {
		select {
		case <-done:
		case <-deadline:
			return
		}
	}
}
