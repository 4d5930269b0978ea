// Null is a CNI plugin that does nothing: it prints a result for ADD and takes
// every other verb. What a runtime pays for it, it pays for any plugin in Go.
package main

import "os"

func main() {
	if os.Getenv("CNI_COMMAND") == "ADD" {
		_, _ = os.Stdout.WriteString(`{"cniVersion":"1.0.0"}`) // without it, the runtime fails the ADD
	}
}
