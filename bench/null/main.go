// Null is a CNI plugin that does nothing: it prints a result for ADD and accepts every other verb. Its
// run time is the minimum for a plugin in Go.
package main

import "os"

func main() {
	if os.Getenv("CNI_COMMAND") == "ADD" {
		_, _ = os.Stdout.WriteString(`{"cniVersion":"1.0.0"}`) // the runtime expects a result
	}
}
