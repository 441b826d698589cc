// ignition-validate reads ignition documents as a node would, with CoreOS' own parser.
//
//	ignition-validate FILE ...
//
// For each file it prints one line: "ok", or "refused" with the parser's report. Exit code 1: one was refused.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/coreos/ignition/v2/config"
)

func main() {
	refused := false
	for _, name := range os.Args[1:] {
		if reason := refusal(name); reason != "" {
			refused = true
			fmt.Printf("refused %s: %s\n", name, strings.ReplaceAll(reason, "\n", "; "))
		} else {
			fmt.Printf("ok %s\n", name)
		}
	}
	if refused {
		os.Exit(1)
	}
}

func refusal(name string) string {
	document, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	_, report, err := config.Parse(document)
	if err != nil {
		return err.Error() + ": " + report.String()
	}
	if report.IsFatal() {
		return report.String()
	}
	return ""
}
