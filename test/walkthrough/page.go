// Package walkthrough runs the commands of the quick starts and the tutorial (docs/start), from the text of the pages. The
// tests that run them have the build tag e2e; the others check that no command of these pages is left out.
package walkthrough

import (
	"fmt"
	"regexp"
	"strings"
)

// block is a fenced block of a page.
type block struct {
	line     int // of the fence
	language string
	file     string // where the page says to save it
	skipped  string // why it is not run: <!-- not run: why --> before it
	text     string
}

var (
	saveAs = regexp.MustCompile("[Ss]ave (?:it )?as `([^`]+)`")
	notRun = regexp.MustCompile(`<!-- not run: (.+?) -->`)
)

// parse returns the fenced blocks of a page.
func parse(page string) (blocks []block, err error) {
	var open *block
	var before []string // the lines since the last block
	indent := ""
	for i, line := range strings.Split(page, "\n") {
		trimmed := strings.TrimLeft(line, " ")
		switch {
		case open == nil && strings.HasPrefix(trimmed, "```"):
			indent = line[:len(line)-len(trimmed)]
			open = &block{line: i + 1, language: strings.TrimPrefix(trimmed, "```")}
			text := strings.Join(before, "\n")
			if m := saveAs.FindAllStringSubmatch(text, -1); m != nil {
				open.file = m[len(m)-1][1]
			}
			if m := notRun.FindStringSubmatch(text); m != nil {
				open.skipped = m[1]
			}
		case open != nil && trimmed == "```":
			blocks, open, before = append(blocks, *open), nil, nil
		case open != nil:
			open.text += strings.TrimPrefix(line, indent) + "\n"
		default:
			before = append(before, line)
		}
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: the block has no end", open.line)
	}
	return blocks, nil
}

// step is a part of a page that a shell runs.
type step struct {
	line     int
	commands string
	output   []string // of a console block: what the page shows
	fails    string   // of a command followed by "# Error ...": what it prints
}

// steps returns what a shell runs to do what the page says: commands in sh blocks, those behind "$ " in console blocks, and
// the files that the page says to save.
func steps(blocks []block) (out []step, err error) {
	for _, b := range blocks {
		switch {
		case b.skipped != "":
		case b.file != "" && b.language != "sh" && b.language != "console":
			out = append(out, step{line: b.line, commands: fmt.Sprintf("cat >%s <<'END_OF_FILE'\n%sEND_OF_FILE\n", b.file, b.text)})
		case b.language == "sh":
			out = append(out, shell(b)...)
		case b.language == "console":
			out = append(out, console(b)...)
		case b.language == "text" || b.language == "yaml": // shown, not typed
		default:
			return nil, fmt.Errorf("line %d: language %q, want sh, console, yaml or text", b.line, b.language)
		}
	}
	return out, nil
}

// shell returns the steps of an sh block. A command that is followed by "# Error ..." is a step of its own.
func shell(b block) (out []step) {
	commands := ""
	for i, line := range strings.Split(strings.TrimSuffix(b.text, "\n"), "\n") {
		command, message, fails := strings.Cut(line, "# Error")
		if !fails {
			commands += line + "\n"
			continue
		}
		if commands != "" {
			out = append(out, step{line: b.line, commands: commands})
		}
		out = append(out, step{line: b.line + 1 + i, commands: command + "\n", fails: "Error" + message})
		commands = ""
	}
	if commands != "" {
		out = append(out, step{line: b.line, commands: commands})
	}
	return out
}

func console(b block) (out []step) {
	for i, line := range strings.Split(strings.TrimSuffix(b.text, "\n"), "\n") {
		if command, typed := strings.CutPrefix(line, "$ "); typed {
			out = append(out, step{line: b.line + 1 + i, commands: command + "\n"})
		} else if len(out) > 0 {
			out[len(out)-1].output = append(out[len(out)-1].output, line)
		}
	}
	return out
}

// variable are parts of output that differ from run to run: numbers, ages, versions, addresses and IDs.
var variable = regexp.MustCompile(`v?\d[\w.:/+-]*`)

// pattern matches a line of output: parts that vary may be others, and columns may be wider.
func pattern(line string) *regexp.Regexp {
	var out strings.Builder
	for i, word := range strings.Fields(line) {
		if i > 0 {
			out.WriteString(`\s+`)
		}
		last := 0
		for _, at := range variable.FindAllStringIndex(word, -1) {
			out.WriteString(regexp.QuoteMeta(word[last:at[0]]) + `\S+`)
			last = at[1]
		}
		out.WriteString(regexp.QuoteMeta(word[last:]))
	}
	return regexp.MustCompile(out.String())
}

// compare returns an error if a command did not print the lines of the page in their order.
func (s step) compare(printed string) error {
	lines := strings.Split(printed, "\n")
	for _, want := range s.output {
		if strings.TrimSpace(want) == "" {
			continue
		}
		found := -1
		for i, line := range lines {
			if pattern(want).MatchString(line) {
				found = i
				break
			}
		}
		if found < 0 {
			return fmt.Errorf("line %d: the command does not print %q but:\n%s", s.line, want, printed)
		}
		lines = lines[found+1:]
	}
	return nil
}
