package main

import (
	"errors"
	"io"
	"net"
	"time"
)

type stallResult struct {
	Normal  summary `json:"normal"`
	Stalled summary `json:"stalled"`
	// Blocked: a ping of the second connection did not come back within the limit.
	Blocked bool `json:"blocked"`
	// NewConnectionMs is how long a third connection took to open meanwhile; -1 if it could not.
	NewConnectionMs float64 `json:"new_connection_ms"`
	// Reader is what had become of the stalled reader when it read on.
	Reader  string `json:"reader"`
	Settled bool   `json:"settled"`
}

// runStall stops one reader of an endless download and pings on a second connection,
// before and meanwhile.
func runStall(args []string) error {
	s := newScenario("stall")
	from := s.flags.String("source", "", "host:port of the endless download")
	limit := s.flags.Duration("limit", 3*time.Second, "how long a ping may take before it counts as blocked")
	_ = s.flags.Parse(args)
	second, err := s.dial()
	if err != nil {
		return err
	}
	pingWithin(second, warmup, *limit)
	normal, blocked := pingWithin(second, s.window(), *limit)
	if blocked {
		return errors.New("pings fail already before the reader stalls")
	}
	result := stallResult{Normal: summarize(normal)}

	reader, err := s.dialTo(*from, dialTimeout)
	if err != nil {
		return err
	}
	if err := begin(reader); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, reader, 1<<20); err != nil {
		return err
	}
	// From here on nobody reads: this is how long all buffers get to fill.
	time.Sleep(500 * time.Millisecond)

	waits, blocked := pingWithin(second, s.window(), *limit)
	result.Blocked = blocked
	usual := time.Duration(max(result.Normal.P50us, 1) * 1e3)
	result.Stalled = summarize(waits.spread(usual))
	result.NewConnectionMs = s.openWithin(*limit)
	result.Reader = readOn(reader, *limit)
	closeAll([]net.Conn{reader, second})
	if result.Settled, err = s.settleWithin(*limit); err != nil {
		return err
	}
	return printJSON(result)
}

// pingWithin stops at the first ping that takes longer than the limit. Tunnelled gRPC
// connections know no deadlines, hence the goroutine.
func pingWithin(conn net.Conn, window, limit time.Duration) (samples, bool) {
	taken := newSamples()
	message := make([]byte, pingSize)
	answers := make(chan error, 1)
	end := time.Now().Add(window)
	timer := time.NewTimer(limit)
	for time.Now().Before(end) {
		began := time.Now()
		go func() { answers <- ping(conn, message) }()
		timer.Reset(limit)
		select {
		case err := <-answers:
			if err != nil {
				taken.add(limit)
				return taken, true
			}
			taken.add(time.Since(began))
		case <-timer.C:
			taken.add(limit)
			return taken, true
		}
	}
	return taken, false
}

func (s *scenario) openWithin(limit time.Duration) float64 {
	began := time.Now()
	opened := make(chan error, 1)
	go func() {
		conn, err := s.dialTo(s.target, limit)
		if err == nil {
			err = ping(conn, make([]byte, pingSize))
			defer conn.Close()
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		if err != nil {
			return -1
		}
		return float64(time.Since(began).Microseconds()) / 1e3
	case <-time.After(limit):
		return -1
	}
}

// readOn tells whether the stalled download can go on: 64 MiB are far more than any
// sound amount of buffering.
func readOn(conn net.Conn, limit time.Duration) string {
	ended := make(chan error, 1)
	go func() {
		_, err := io.CopyN(io.Discard, conn, 64<<20)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			return "went on"
		}
		if errors.Is(err, io.EOF) {
			return "closed"
		}
		return "closed: " + err.Error()
	case <-time.After(limit):
		return "stuck"
	}
}
