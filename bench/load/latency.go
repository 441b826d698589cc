package main

import (
	"slices"
	"time"
)

// samples are latencies in nanoseconds. They are reserved in advance, so that no
// collection falls into the measurement.
type samples []int64

func newSamples() samples { return make(samples, 0, 1<<17) }

func (s *samples) add(latency time.Duration) { *s = append(*s, int64(latency)) }

type summary struct {
	Count  int     `json:"count"`
	P50us  float64 `json:"p50_us"`
	P99us  float64 `json:"p99_us"`
	MaxUs  float64 `json:"max_us"`
	MeanUs float64 `json:"mean_us"`
}

func summarize(groups ...samples) summary {
	all := slices.Concat(groups...)
	if len(all) == 0 {
		return summary{}
	}
	slices.Sort(all)
	total := 0.0
	for _, value := range all {
		total += float64(value)
	}
	return summary{
		Count:  len(all),
		P50us:  float64(all[len(all)/2]) / 1e3,
		P99us:  float64(all[len(all)*99/100]) / 1e3,
		MaxUs:  float64(all[len(all)-1]) / 1e3,
		MeanUs: total / float64(len(all)) / 1e3,
	}
}

// spread adds, for every wait longer than the usual interval, the requests that a
// client with a steady rhythm would have had waiting in it. Without that a pause of
// seconds counts as one slow request out of thousands.
func (s samples) spread(interval time.Duration) samples {
	out := slices.Clone(s)
	for _, latency := range s {
		for rest := latency - int64(interval); rest > int64(interval); rest -= int64(interval) {
			out = append(out, rest)
		}
	}
	return out
}
