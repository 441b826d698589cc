package main

import (
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"
)

// The Go agent's own rhythm: --sync-interval, --sync-interval-cap, growth and jitter of its backoff.
const (
	reconnectFirst  = time.Second
	reconnectCap    = 10 * time.Second
	reconnectGrowth = 1.5
	reconnectJitter = 0.1
	// fleetDialers bounds the first connects only: after a loss every agent follows its own clock.
	fleetDialers = 8
)

// fleetState is printed whenever the number of connected agents reaches the full count.
type fleetState struct {
	Connected int64 `json:"connected"`
	// Attempts and Failed count since the last time that all were connected.
	Attempts int64 `json:"attempts"`
	Failed   int64 `json:"failed"`
	// Reason is that of one of the failures.
	Reason string `json:"reason"`
}

type fleet struct {
	server    string
	config    *tls.Config
	count     int64
	connected atomic.Int64
	attempts  atomic.Int64
	failed    atomic.Int64
	reason    atomic.Value
	full      chan struct{}
}

// runFleet keeps many agents connected until its stdin ends. An agent that loses the server
// waits and dials again as the Go agent does.
func runFleet(args []string) error {
	flags := flag.NewFlagSet("fleet", flag.ExitOnError)
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
	f := &fleet{server: *server, config: config, count: int64(*count), full: make(chan struct{}, 1)}
	slots := make(chan struct{}, fleetDialers)
	for i := range *count {
		slots <- struct{}{}
		go f.keep(fmt.Sprintf("agent-%05d", i), func() { <-slots })
	}
	go f.report()
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// keep connects one agent, again and again; first runs after its first attempt.
func (f *fleet) keep(id string, first func()) {
	wait := reconnectFirst
	for {
		f.attempts.Add(1)
		a, err := startAgent(f.server, id, f.config)
		first()
		first = func() {}
		if err != nil {
			f.failed.Add(1)
			f.reason.Store(err.Error())
			time.Sleep(jittered(wait))
			wait = min(time.Duration(float64(wait)*reconnectGrowth), reconnectCap)
			continue
		}
		wait = reconnectFirst
		if f.connected.Add(1) == f.count {
			select {
			case f.full <- struct{}{}:
			default:
			}
		}
		_ = a.serve()
		f.connected.Add(-1)
		time.Sleep(jittered(reconnectFirst))
	}
}

func jittered(wait time.Duration) time.Duration {
	return time.Duration(float64(wait) * (1 + reconnectJitter*rand.Float64()))
}

func (f *fleet) report() {
	for range f.full {
		reason, _ := f.reason.Swap("").(string)
		state := fleetState{
			Connected: f.count, Attempts: f.attempts.Swap(0), Failed: f.failed.Swap(0), Reason: reason,
		}
		if err := printJSON(state); err != nil {
			return
		}
	}
}

type callerResult struct {
	summary
	Failed int    `json:"failed"`
	Reason string `json:"reason"`
}

// runCaller dials, echoes one small message and closes, one at a time, until its stdin ends. It prints
// a line when it has begun, and the result at the end.
func runCaller(args []string) error {
	s := newScenario("caller")
	pause := s.flags.Duration("pause", 5*time.Millisecond, "between two calls")
	_ = s.flags.Parse(args)
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	if err := printJSON(idleResult{}); err != nil {
		return err
	}
	taken, failed := newSamples(), failures{}
	message := make([]byte, 64)
	for {
		select {
		case <-ended:
			result := callerResult{summary: summarize(taken.spread(*pause)), Failed: failed.count}
			if failed.first != nil {
				result.Reason = failed.first.Error()
			}
			return printJSON(result)
		case <-time.After(*pause):
		}
		began := time.Now()
		if err := s.connectOnce(message); err != nil {
			if failed.count++; failed.first == nil {
				failed.first = err
			}
		}
		// A call that failed has cost its caller the same wait.
		taken.add(time.Since(began))
	}
}
