package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// chunkSize is the size of every bulk write, on either end.
const chunkSize = 256 << 10

// backendState is what a load process asks for: how much really arrived at this end.
type backendState struct {
	Sunk int64 `json:"sunk"`
	Open int64 `json:"open"`
}

type backend struct {
	sunk atomic.Int64
	open atomic.Int64
}

// runBackend serves each behaviour on a port of its own until it is killed.
func runBackend(args []string) error {
	flags := flag.NewFlagSet("backend", flag.ExitOnError)
	host := flags.String("host", "127.0.0.1", "address to listen on")
	_ = flags.Parse(args)

	b := &backend{}
	ports := map[string]string{}
	for name, serve := range map[string]func(net.Conn){
		"echo": echo, "source": sourceOnDemand, "sink": b.sink, "duplex": b.duplex,
	} {
		address, err := b.listen(*host, serve)
		if err != nil {
			return err
		}
		ports[name] = address
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(*host, "0"))
	if err != nil {
		return err
	}
	ports["control"] = listener.Addr().String()
	if err := printJSON(ports); err != nil {
		return err
	}
	return acceptAll(listener, b.control)
}

func (b *backend) listen(host string, serve func(net.Conn)) (string, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", err
	}
	counted := func(conn net.Conn) {
		b.open.Add(1)
		defer b.open.Add(-1)
		serve(conn)
	}
	go func() { _ = acceptAll(listener, counted) }()
	return listener.Addr().String(), nil
}

func acceptAll(listener net.Listener, serve func(net.Conn)) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			serve(conn)
		}()
	}
}

func echo(conn net.Conn) {
	// Small, because ten thousand idle connections hold one each.
	buffer := make([]byte, 2048)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		if _, err := conn.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// sourceOnDemand waits for one byte before it sends. The Go server may deliver what an
// endpoint says at once before its own 200, and that race is not what is measured here.
func sourceOnDemand(conn net.Conn) {
	if _, err := io.ReadFull(conn, make([]byte, 1)); err == nil {
		source(conn)
	}
}

func source(conn net.Conn) {
	chunk := make([]byte, chunkSize)
	for {
		if _, err := conn.Write(chunk); err != nil {
			return
		}
	}
}

func (b *backend) sink(conn net.Conn) {
	buffer := make([]byte, chunkSize)
	for {
		n, err := conn.Read(buffer)
		b.sunk.Add(int64(n))
		if err != nil {
			return
		}
	}
}

func (b *backend) duplex(conn net.Conn) {
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		return
	}
	go func() {
		source(conn)
		conn.Close()
	}()
	b.sink(conn)
}

// control answers every line with the state of the whole backend.
func (b *backend) control(conn net.Conn) {
	lines := bufio.NewReader(conn)
	for {
		if _, err := lines.ReadString('\n'); err != nil {
			return
		}
		state := backendState{Sunk: b.sunk.Load(), Open: b.open.Load()}
		if err := json.NewEncoder(conn).Encode(state); err != nil {
			return
		}
	}
}

// observer asks a backend for its state, past the tunnel.
type observer struct {
	conn    net.Conn
	decoder *json.Decoder
}

func observe(control string) (*observer, error) {
	conn, err := net.Dial("tcp", control)
	if err != nil {
		return nil, fmt.Errorf("--control: %w", err)
	}
	return &observer{conn: conn, decoder: json.NewDecoder(conn)}, nil
}

func (o *observer) state() (backendState, error) {
	var state backendState
	if _, err := o.conn.Write([]byte("\n")); err != nil {
		return state, err
	}
	return state, o.decoder.Decode(&state)
}

// settled waits until no connection is left at the backend, so that one scenario
// never runs into the leftovers of the one before.
func (o *observer) settled(limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for time.Now().Before(deadline) {
		if state, err := o.state(); err == nil && state.Open == 0 {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}
