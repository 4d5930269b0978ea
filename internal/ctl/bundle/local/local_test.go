package local

import (
	"io"
	"strings"
	"testing"
)

// A panic of a library that reads the kernel's state is an error of its part.
func TestPanicOfAWriterIsItsError(t *testing.T) {
	var got []byte
	err := piped(func(w io.Writer) error {
		_, _ = io.WriteString(w, "before")
		panic("an expression of iptables")
	}, func(r io.Reader) (err error) {
		got, err = io.ReadAll(r)
		return err
	})
	if string(got) != "before" || err == nil || !strings.Contains(err.Error(), "an expression of iptables") {
		t.Errorf("read %q with error %v", got, err)
	}
}

func TestCommandLine(t *testing.T) {
	got := commandLine([]byte("kubelet\x00--password\x00planted two words\x00--token=planted\x00--v=2\x00"))
	if want := "kubelet --password REDACTED --token=REDACTED --v=2"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
