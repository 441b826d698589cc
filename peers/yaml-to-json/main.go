// Converts each YAML document on standard input to a line of JSON, as kube-apiserver operators read their files.
// Documents are separated by NUL bytes; an invalid one gives a line that starts with "error".
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"sigs.k8s.io/yaml"
)

func main() {
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	for _, document := range bytes.Split(input, []byte{0}) {
		converted, err := yaml.YAMLToJSON(document)
		if err != nil {
			fmt.Println("error")
			continue
		}
		fmt.Println(string(converted))
	}
}
