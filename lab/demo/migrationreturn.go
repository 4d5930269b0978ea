package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/node/foreign"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
)

// fence is the checkpoint that keeps ipamd from starting.
func (m *migration) fence() string { return filepath.Join(m.ipamd.RunDir(), foreign.CheckpointName) }

// sole waits until the condition SoleCNIPlugin says something; empty: that it is healthy.
func (m *migration) sole(ctx context.Context, what string) {
	await(ctx, "SoleCNIPlugin", func() {
		for _, c := range must(lab.Document(ctx, m.node())).Conditions {
			if c.Type == "SoleCNIPlugin" && (c.Status == introspect.True) == (what == "") && strings.Contains(c.Message, what) {
				return
			}
		}
		fail("expected that the condition says %q", what)
	})
}

// formerReturns starts the Amazon VPC CNI on a node whose migration is finished, as its DaemonSet does when somebody applies it again.
func formerReturns(ctx context.Context, s *stage) string {
	m := s.migration
	refused := func(when string) {
		check(m.ipamd.Start())
		select {
		case <-m.ipamd.Exited():
		case <-ctx.Done():
			fail("%s: ipamd runs beside Berth's pods", when)
		}
		log := string(must(os.ReadFile(filepath.Join(filepath.Dir(m.node().LogFile()), "ipamd.log"))))
		if !strings.Contains(log[max(0, len(log)-2000):], foreign.CheckpointMoved) {
			fail("%s: ipamd ended for another reason: %s", when, m.ipamd.LogTail(5))
		}
	}
	refused("after the migration")
	must(m.node().AddPod(ctx, "after-finish", node.PodOptions{}))
	check(errors.Join(m.node().Kill(), os.Remove(m.fence()))) // as a reboot does
	check(errors.Join(m.node().Start(), m.node().WaitReady(ctx)))
	refused("after a reboot")
	m.verify(ctx, s.far())
	m.sole(ctx, "")

	// Somebody removes the fence: there are two networks, which is not hidden.
	check(os.Remove(m.fence()))
	began := time.Now()
	await(ctx, "ipamd", func() { // it ends if berthd repairs a link that it sets up, and a kubelet starts it again
		if !m.ipamd.Running() {
			check(m.ipamd.Start())
		}
		check(m.ipamd.Ready(ctx))
	})
	check(m.ipamd.Configure())
	m.sole(ctx, "new pods get their addresses from Amazon VPC CNI")
	m.sole(ctx, "the daemon of Amazon VPC CNI runs")
	took := time.Since(began)
	var status bytes.Buffer
	check(ns.Do(m.node().Netns, func() error {
		cmd := exec.CommandContext(ctx, filepath.Join(m.lab.BinDir, "berthctl"), "status")
		cmd.Stdout = &status
		return cmd.Run()
	}))
	if !strings.Contains(status.String(), foreign.ReasonTwo) {
		fail("berthctl status does not tell of two CNI plugins:\n%s", &status)
	}
	check(errors.Join(m.ipamd.Kill(), os.Remove(m.ipamd.Configuration())))
	_ = os.Remove(m.fence()) // a checkpoint that ipamd may have written
	m.sole(ctx, "")
	m.verify(ctx, s.far())
	return fmt.Sprintf("ipamd refused twice; without the fence reported %s after its start", ms(took))
}
