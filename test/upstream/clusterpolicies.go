package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// groupClusterPolicy is the group of the conformance suite of network-policy-api, which is a Go test and not among
// Kubernetes' own tests.
const groupClusterPolicy = "clusterpolicy"

// clusterPolicies is that suite.
type clusterPolicies struct {
	program string // hack/tool.sh networkpolicyapi conformance.test
	crd     string // the definition of ClusterNetworkPolicy; empty: it is installed
}

// withSCTP are its tests that open SCTP connections.
const withSCTP = "CNP(Admin|Baseline)Tier(EgressSCTP|IngressSCTP|Gress|PortRange|EgressInlineCIDRPeers|EgressNodePeers)"

// kindFound is when the operator has found a kind that was just installed. It looks every 30 s (docs/guides/network-policy.md).
const kindFound = 32 * time.Second

const needsSCTP = "needs a kernel with SCTP"

// withoutSCTP removes the SCTP servers of the suite's pods, which do not start on a kernel without SCTP.
const withoutSCTP = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: conformance-without-sctp}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [statefulsets]}]
  mutations:
    - patchType: JSONPatch
      jsonPatch:
        expression: '[JSONPatch{op: "replace", path: "/spec/template/spec/containers", value: object.spec.template.spec.containers.filter(c, !has(c.env))}]'
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: conformance-without-sctp}
spec: {policyName: conformance-without-sctp}
`

// run runs the suite, or what focus matches of it, and returns what became of its tests.
func (s clusterPolicies) run(ctx context.Context, c cluster, focus *regexp.Regexp, dir string, out io.Writer) ([]result, error) {
	if s.program == "" {
		return nil, usagef("-cluster-policies is needed for the group %s: hack/tool.sh networkpolicyapi conformance.test prints it", groupClusterPolicy)
	}
	sctp, err := hasSCTP()
	if err != nil {
		return nil, err
	}
	if err := s.prepare(ctx, c, sctp); err != nil {
		return nil, fmt.Errorf("prepare the cluster for ClusterNetworkPolicies: %w", err)
	}
	pattern := "^TestConformance$"
	if focus != nil {
		pattern += "/" + focus.String()
	}
	args := []string{"-test.run=" + pattern, "-test.v", "-test.timeout=1h", "-all-features"}
	if !sctp {
		args = append(args, "-test.skip=^TestConformance$/^"+withSCTP+"$")
	}
	run := exec.CommandContext(ctx, s.program, args...)
	if c.netns != "" {
		run = exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + c.netns, "--", s.program}, args...)...)
	}
	run.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	run.Cancel = func() error { return syscall.Kill(-run.Process.Pid, syscall.SIGKILL) }
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder for reports: %w", err)
	}
	log, err := os.Create(filepath.Join(dir, "clusterpolicies.log"))
	if err != nil {
		return nil, fmt.Errorf("make the log of the tests: %w", err)
	}
	defer log.Close()
	var text bytes.Buffer
	run.Stdout = io.MultiWriter(log, &text, &verbose{out: out})
	run.Stderr = log
	ran := run.Run()
	all, err := readVerbose(&text, ran == nil)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the conformance suite of ClusterNetworkPolicy did not run to its end: %w (log in %s)", err, log.Name()), ran)
	}
	if !sctp && focus == nil {
		for name := range strings.SplitSeq("Admin Baseline", " ") {
			for kind := range strings.SplitSeq("EgressSCTP IngressSCTP Gress PortRange EgressInlineCIDRPeers EgressNodePeers", " ") {
				all = append(all, result{Name: "CNP" + name + "Tier" + kind, Group: groupClusterPolicy, Outcome: notApplicable, Why: needsSCTP})
			}
		}
	}
	return all, nil
}

// prepare installs the kind and, on a kernel without SCTP, what lets the suite's pods start.
func (s clusterPolicies) prepare(ctx context.Context, c cluster, sctp bool) error {
	var texts [][]byte
	if s.crd != "" {
		crd, err := os.ReadFile(s.crd)
		if err != nil {
			return err
		}
		texts = append(texts, crd)
	}
	if !sctp {
		texts = append(texts, bytes.Split([]byte(withoutSCTP), []byte("\n---\n"))...)
	}
	var objects []*unstructured.Unstructured
	for _, text := range texts {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(text, &o.Object); err != nil {
			return err
		}
		objects = append(objects, o)
	}
	if c.apply == nil {
		return nil // somebody else's cluster is prepared by its owner
	}
	if err := c.apply(ctx, objects); err != nil {
		return err
	}
	select {
	case <-time.After(kindFound):
	case <-ctx.Done():
	}
	return ctx.Err()
}

// hasSCTP reports whether the kernel has SCTP.
func hasSCTP() (bool, error) {
	protocols, err := os.ReadFile("/proc/net/protocols")
	if err != nil {
		return false, fmt.Errorf("find out whether the kernel has SCTP: %w", err)
	}
	return bytes.Contains(protocols, []byte("SCTP")), nil
}

// verdict is a line of go test -v that says how a test ended, and whole the one about all of them.
var (
	verdict = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): TestConformance/(\S+) \(([0-9.]+)s\)`)
	whole   = regexp.MustCompile(`^--- (PASS|FAIL): TestConformance \(`)
)

// readVerbose reads what became of the tests that have no subtests. A program that ended early, as by a panic or a signal, is an error:
// what it printed until then is not all. exited tells whether the program ended without an error.
func readVerbose(in io.Reader, exited bool) ([]result, error) {
	var all []result
	outcome, last := "", ""
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		last = lines.Text()
		if m := whole.FindStringSubmatch(last); m != nil {
			outcome = m[1]
		}
		m := verdict.FindStringSubmatch(last)
		if m == nil {
			continue
		}
		r := result{Name: m[2], Group: groupClusterPolicy, Outcome: map[string]string{"PASS": passed, "FAIL": failed, "SKIP": notApplicable}[m[1]]}
		r.Seconds, _ = strconv.ParseFloat(m[3], 64) // digits
		all = append(all, r)
	}
	bad := slices.ContainsFunc(all, func(r result) bool { return r.Outcome == failed })
	switch {
	case len(all) == 0:
		return nil, errors.New("no test has a result")
	case outcome == "" || last != outcome:
		return nil, fmt.Errorf("there are results of %d tests, and no last line that ends the suite", len(all))
	case exited != (outcome == "PASS") || exited == bad:
		return nil, fmt.Errorf("the suite says %s, and its exit code or its tests say otherwise", outcome)
	}
	return slices.DeleteFunc(slices.Clone(all), func(r result) bool {
		return slices.ContainsFunc(all, func(o result) bool { return strings.HasPrefix(o.Name, r.Name+"/") })
	}), nil
}

// begun is a line of go test -v that says that a test began. How it ended is printed after all tests.
var begun = regexp.MustCompile(`^=== RUN   TestConformance/([^/\s]+)$`)

// verbose prints which tests of go test -v run.
type verbose struct {
	out  io.Writer
	rest []byte
}

// Write implements io.Writer.
func (v *verbose) Write(data []byte) (int, error) {
	v.rest = append(v.rest, data...)
	for {
		line, rest, whole := bytes.Cut(v.rest, []byte("\n"))
		if !whole {
			return len(data), nil
		}
		v.rest = rest
		if m := begun.FindSubmatch(line); m != nil {
			fmt.Fprintf(v.out, "  running %s\n", m[1])
		}
	}
}
