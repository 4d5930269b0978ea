package walkthrough

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// reasons why a command of a page in docs/start is not run.
var reasons = []string{"it changes the system of this machine"}

// Pages of docs/start whose commands are run.
var pages = []string{"bare-metal.md", "eks.md", "lab.md"}

func readPage(t *testing.T, name string) []block {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../docs/start", name))
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := parse(string(data))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return blocks
}

// Every command of the quick starts and the tutorial is run, except those with a known reason, and pages without a run have
// no commands.
func TestCommandsAreRun(t *testing.T) {
	all, err := filepath.Glob("../../docs/start/*.md")
	if err != nil || len(all) < len(pages) {
		t.Fatalf("%d pages: %v", len(all), err)
	}
	for _, path := range all {
		name := filepath.Base(path)
		blocks := readPage(t, name)
		for _, b := range blocks {
			if b.skipped != "" && !slices.Contains(reasons, b.skipped) {
				t.Errorf("%s:%d: not run: %q, want one of %q", name, b.line, b.skipped, reasons)
			}
			if !slices.Contains(pages, name) && (b.language == "sh" || b.language == "console") {
				t.Errorf("%s:%d: no test runs the commands of this page", name, b.line)
			}
		}
		found, err := steps(blocks)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if slices.Contains(pages, name) && len(found) < 7 {
			t.Errorf("%s: only %d steps", name, len(found))
		}
	}
}

func TestSteps(t *testing.T) {
	const page = "Save as `a.yaml`:\n\n```yaml\nkind: A\n```\n\ntext\n\n```sh\ntrue\nfalse   # Error: it failed\nls\n```\n\n" +
		"1. item\n\n   ```console\n   $ kubectl get nodes\n   NAME   AGE\n   $ date\n   ```\n\n<!-- not run: why -->\n```sh\nreboot\n```\n\n```text\nshown\n```\n"
	blocks, err := parse(page)
	if err != nil {
		t.Fatal(err)
	}
	got, err := steps(blocks)
	if err != nil {
		t.Fatal(err)
	}
	want := []step{
		{line: 3, commands: "cat >a.yaml <<'END_OF_FILE'\nkind: A\nEND_OF_FILE\n"},
		{line: 9, commands: "true\n"},
		{line: 11, commands: "false   \n", fails: "Error: it failed"},
		{line: 9, commands: "ls\n"},
		{line: 18, commands: "kubectl get nodes\n", output: []string{"NAME   AGE"}},
		{line: 20, commands: "date\n"},
	}
	if !slices.EqualFunc(got, want, func(a, b step) bool {
		return a.line == b.line && a.commands == b.commands && a.fails == b.fails && slices.Equal(a.output, b.output)
	}) {
		t.Errorf("steps = %+v\nwant %+v", got, want)
	}
	for page, want := range map[string]string{"```sh\nls\n": "no end", "```ruby\nputs\n```\n": "language"} {
		blocks, err := parse(page)
		if err == nil {
			_, err = steps(blocks)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("steps of %q = %v, want %q", page, err, want)
		}
	}
}

func TestOutputIsCompared(t *testing.T) {
	s := step{output: []string{"NAME     STATUS   AGE", "node-1   Ready    40s", "", "10.2.0.64/27 dev lo"}}
	for printed, ok := range map[string]bool{
		"NAME        STATUS  AGE\nnode-1  Ready  2m3s\n10.2.9.96/27 dev lo proto 190": true,
		"NAME        STATUS  AGE\nnode-1  NotReady  2m3s\n10.2.9.96/27 dev lo":        false,
		"node-1  Ready  2m3s\nNAME        STATUS  AGE\n10.2.9.96/27 dev lo":           false,
		"": false,
	} {
		if err := s.compare(printed); (err == nil) != ok {
			t.Errorf("compare(%q) = %v, want success %t", printed, err, ok)
		}
	}
}
