package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	pingSize = 1024
	// warmup is left out of every figure: windows open, buffers and caches fill.
	warmup = 300 * time.Millisecond
	// settleTimeout is how long a tunnel may take to close what the load has closed.
	settleTimeout = 5 * time.Second
)

// scenario holds the flags that all scenarios share.
type scenario struct {
	*frontend
	flags   *flag.FlagSet
	conns   *int
	seconds *float64
	control *string
}

func newScenario(name string) *scenario {
	flags := flag.NewFlagSet(name, flag.ExitOnError)
	return &scenario{
		flags:    flags,
		frontend: frontendFlags(flags),
		conns:    flags.Int("conns", 1, "connections at once"),
		seconds:  flags.Float64("seconds", 1, "length of the measurement"),
		control:  flags.String("control", "", "the backend's control port, for bytes that arrived there"),
	}
}

func (s *scenario) window() time.Duration {
	return time.Duration(*s.seconds * float64(time.Second))
}

// settle waits for the backend to be rid of this scenario's connections.
func (s *scenario) settle() (bool, error) { return s.settleWithin(settleTimeout) }

func (s *scenario) settleWithin(limit time.Duration) (bool, error) {
	if *s.control == "" {
		return true, nil
	}
	watch, err := observe(*s.control)
	if err != nil {
		return false, err
	}
	return watch.settled(limit), nil
}

type pingResult struct {
	summary
	PerSecond float64 `json:"per_second"`
	Settled   bool    `json:"settled"`
}

// runPing sends 1 KiB and waits for it to come back, on each connection, over and over.
func runPing(args []string) error {
	s := newScenario("ping")
	_ = s.flags.Parse(args)
	conns, err := s.dialAll(*s.conns)
	if err != nil {
		return err
	}
	groups := make([]samples, len(conns))
	errs := make(chan error, len(conns))
	start := time.Now().Add(warmup)
	end := start.Add(s.window())
	for i, conn := range conns {
		go func() {
			var err error
			groups[i], err = pingUntil(conn, start, end)
			errs <- err
		}()
	}
	for range conns {
		if err := <-errs; err != nil {
			return err
		}
	}
	closeAll(conns)
	result := pingResult{summary: summarize(groups...)}
	result.PerSecond = float64(result.Count) / s.window().Seconds()
	if result.Settled, err = s.settle(); err != nil {
		return err
	}
	return printJSON(result)
}

// pingUntil counts the pings that began at or after start.
func pingUntil(conn net.Conn, start, end time.Time) (samples, error) {
	taken := newSamples()
	message := make([]byte, pingSize)
	for {
		began := time.Now()
		if began.After(end) {
			return taken, nil
		}
		if err := ping(conn, message); err != nil {
			return nil, err
		}
		if !began.Before(start) {
			taken.add(time.Since(began))
		}
	}
}

func ping(conn net.Conn, message []byte) error {
	if _, err := conn.Write(message); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, message)
	return err
}

type connectResult struct {
	summary
	PerSecond float64 `json:"per_second"`
	Failed    int     `json:"failed"`
	// Reason is that of one of the failures.
	Reason  string `json:"reason"`
	Settled bool   `json:"settled"`
}

// runConnect opens a connection, echoes one small message and closes it, over and over.
func runConnect(args []string) error {
	s := newScenario("connect")
	_ = s.flags.Parse(args)
	groups := make([]samples, *s.conns)
	failed := make([]failures, *s.conns)
	start := time.Now().Add(warmup)
	end := start.Add(s.window())
	var workers sync.WaitGroup
	for i := range groups {
		workers.Go(func() { groups[i], failed[i] = s.connectUntil(start, end) })
	}
	workers.Wait()
	result := connectResult{summary: summarize(groups...)}
	for _, f := range failed {
		result.Failed += f.count
		if f.first != nil {
			result.Reason = f.first.Error()
		}
	}
	result.PerSecond = float64(result.Count) / s.window().Seconds()
	var err error
	if result.Settled, err = s.settle(); err != nil {
		return err
	}
	return printJSON(result)
}

type failures struct {
	count int
	first error
}

func (s *scenario) connectUntil(start, end time.Time) (samples, failures) {
	taken, failed := newSamples(), failures{}
	message := make([]byte, 64)
	for {
		began := time.Now()
		if began.After(end) {
			return taken, failed
		}
		if err := s.connectOnce(message); err != nil {
			if failed.count++; failed.first == nil {
				failed.first = err
			}
			continue
		}
		if !began.Before(start) {
			taken.add(time.Since(began))
		}
	}
}

func (s *scenario) connectOnce(message []byte) error {
	conn, err := s.dial()
	if err != nil {
		return err
	}
	if err := ping(conn, message); err != nil {
		conn.Close()
		return err
	}
	// After the answer to its close, upstream's client picks at random between that
	// answer and the end of its own tunnel: this text says nothing about the peer.
	if err := conn.Close(); err != nil && err.Error() != "tunnel closed" {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

type bulkResult struct {
	MiBPerSecond float64 `json:"mib_per_second"`
	// BytesTotal includes the warm-up: it is what the CPU time of the whole run moved.
	BytesTotal int64 `json:"bytes_total"`
	Settled    bool  `json:"settled"`
}

// runBulk moves 256 KiB writes as fast as they go. Bytes are counted where they
// arrive: down at this end, up at the backend, so that no buffer in between counts.
func runBulk(args []string) error {
	s := newScenario("bulk")
	direction := s.flags.String("direction", "down", "down, up or both; the target must be source, sink or duplex")
	_ = s.flags.Parse(args)
	watch, err := observe(*s.control)
	if err != nil {
		return err
	}
	before, err := watch.state()
	if err != nil {
		return err
	}
	conns, err := s.dialAll(*s.conns)
	if err != nil {
		return err
	}
	var received atomic.Int64
	for _, conn := range conns {
		if err := begin(conn); err != nil {
			return err
		}
		if *direction != "up" {
			go receive(conn, &received)
		}
		if *direction != "down" {
			go source(conn)
		}
	}
	moved := func() (int64, error) {
		state, err := watch.state()
		return received.Load() + state.Sunk - before.Sunk, err
	}
	result, err := measureBulk(moved, s.window())
	if err != nil {
		return err
	}
	closeAll(conns)
	result.Settled = watch.settled(settleTimeout)
	if result.BytesTotal, err = moved(); err != nil {
		return err
	}
	return printJSON(result)
}

// begin sends the byte that a source waits for.
func begin(conn net.Conn) error {
	_, err := conn.Write([]byte{1})
	return err
}

func measureBulk(moved func() (int64, error), window time.Duration) (bulkResult, error) {
	time.Sleep(warmup)
	first, err := moved()
	if err != nil {
		return bulkResult{}, err
	}
	began := time.Now()
	time.Sleep(window)
	last, err := moved()
	if err != nil {
		return bulkResult{}, err
	}
	rate := float64(last-first) / (1 << 20) / time.Since(began).Seconds()
	return bulkResult{MiBPerSecond: rate}, nil
}

func receive(conn net.Conn, received *atomic.Int64) {
	buffer := make([]byte, chunkSize)
	for {
		n, err := conn.Read(buffer)
		received.Add(int64(n))
		if err != nil {
			return
		}
	}
}

type idleResult struct {
	Open        int     `json:"open"`
	OpenSeconds float64 `json:"open_seconds"`
}

// runIdle opens connections, proves each with one echo, says so, and holds them until
// its stdin ends.
func runIdle(args []string) error {
	s := newScenario("idle")
	_ = s.flags.Parse(args)
	began := time.Now()
	conns, err := s.dialAll(*s.conns)
	if err != nil {
		return err
	}
	message := make([]byte, 64)
	for _, conn := range conns {
		if err := ping(conn, message); err != nil {
			return err
		}
	}
	if err := printJSON(idleResult{Open: len(conns), OpenSeconds: time.Since(began).Seconds()}); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	closeAll(conns)
	settled, err := s.settle()
	if err == nil && !settled {
		fmt.Fprintln(os.Stderr, "load idle: the backend still has connections open")
	}
	return err
}
