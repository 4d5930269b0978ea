// Command pause is the only process in the sandboxes of the tests. It serves TCP port 7777 like lab/network/echo,
// whose client is used, and ends at SIGTERM. It imports nothing else, so that its image stays small.
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ending := make(chan os.Signal, 1)
	signal.Notify(ending, syscall.SIGTERM, syscall.SIGINT)
	l, err := net.Listen("tcp", ":7777") //nolint:gosec // the sandbox has no other address
	if err != nil {
		fmt.Fprintln(os.Stderr, "pause:", err)
		os.Exit(1)
	}
	go accept(l)
	<-ending
}

func accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go answer(c)
	}
}

func answer(c net.Conn) {
	defer c.Close()
	you, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	to, _, _ := net.SplitHostPort(c.LocalAddr().String())
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		if _, err := fmt.Fprintf(c, "you are %s, to %s: %s\n", you, to, lines.Text()); err != nil {
			return
		}
	}
}
