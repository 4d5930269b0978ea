package check

import (
	"os"
	"regexp"
	"strings"
)

// OutputOnPage compares the output of a command with the block of a page that shows it: one whose first line is "$ " and the
// command, possibly with further arguments. A line "..." of the block stands for any lines. run gets all arguments.
func OutputOnPage(t T, page, command string, run func(args []string) string) {
	t.Helper()
	text := string(Must(os.ReadFile(page))(t))
	_, block, found := strings.Cut(text, "```console\n$ "+command)
	block, _, closed := strings.Cut(block, "```")
	if !found || !closed {
		t.Fatal(page + " has no block with the command " + command)
	}
	more, want, _ := strings.Cut(block, "\n")
	got := run(strings.Fields(command + more))
	pattern := strings.ReplaceAll("\n"+regexp.QuoteMeta(want), "\n"+regexp.QuoteMeta("...\n"), "\n(?s:.*)")
	if !regexp.MustCompile(`^` + pattern + `$`).MatchString("\n" + got) {
		t.Errorf("%s shows as the output of %s%s\n%s\nwant\n%s", page, command, more, want, got)
	}
}
