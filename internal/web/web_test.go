package web

import (
	"strings"
	"testing"
)

func TestListenNamesTheFlag(t *testing.T) {
	l, err := Listen("metrics-address", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Listen("metrics-address", l.Addr().String()); err == nil || !strings.Contains(err.Error(), "--metrics-address "+l.Addr().String()) {
		t.Errorf("err = %v", err)
	}
	if l, err := Listen("metrics-address", ""); l != nil || err != nil {
		t.Errorf("empty address: %v, %v", l, err)
	}
}
