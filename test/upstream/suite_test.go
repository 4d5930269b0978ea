package main

import (
	"io"
	"strings"
	"testing"
	"time"
)

// A runner that cannot be started is an error that names it.
func TestRunnerThatCannotBeStarted(t *testing.T) {
	s := suite{e2e: "/nowhere/e2e.test", ginkgo: "/nowhere/ginkgo", out: t.TempDir(), procs: 1, limit: time.Second}
	_, err := s.run(t.Context(), cluster{kubeconfig: "none"}, []spec{{name: "a"}}, newProgress(io.Discard, 1))
	if err == nil || !strings.Contains(err.Error(), "/nowhere/ginkgo") {
		t.Errorf("got %v", err)
	}
}
