// Command load makes the traffic of the benchmarks and measures it.
//
//	load backend                      the far end: echo, source, sink and duplex ports
//	load ping|connect|bulk|idle|stall one scenario through a tunnel, or direct
//	load agents                       many agents in one process, which really dial
//	load fleet                        many agents that reconnect when they lose the server
//	load caller                       one caller, until its stdin ends
//
// Every subcommand prints JSON on stdout, so that any script can drive it.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"sort"
	"syscall"
)

var commands = map[string]func(args []string) error{
	"backend": runBackend,
	"ping":    runPing,
	"connect": runConnect,
	"bulk":    runBulk,
	"idle":    runIdle,
	"stall":   runStall,
	"agents":  runAgents,
	"fleet":   runFleet,
	"caller":  runCaller,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		names := make([]string, 0, len(commands))
		for name := range commands {
			names = append(names, name)
		}
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "usage: load %v [flags]; load COMMAND --help lists them\n", names)
		os.Exit(2)
	}
	raiseFileLimit()
	// Memory is not what is measured here: fewer collections disturb the figures less.
	debug.SetGCPercent(800)
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "load %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// raiseFileLimit takes all the file descriptors that the hard limit allows.
func raiseFileLimit() {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
		limit.Cur = limit.Max
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
	}
}

func printJSON(value any) error {
	return json.NewEncoder(os.Stdout).Encode(value)
}
