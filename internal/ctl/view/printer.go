package view

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Printer prints to a writer. After the first error, which it keeps in Err, it prints nothing.
type Printer struct {
	W       io.Writer
	Colours bool
	Err     error
}

// Printf prints formatted text. String arguments are escaped to stay on one line.
func (p *Printer) Printf(format string, args ...any) {
	for i, a := range args {
		switch a := a.(type) {
		case string:
			args[i] = Printable(a)
		case Toned:
			args[i] = paint(Printable(a.Text), a.Tone, p.Colours)
		}
	}
	if p.Err == nil {
		_, p.Err = fmt.Fprintf(p.W, format, args...)
	}
}

// Toned is an argument of Printf that is printed in a colour.
type Toned struct {
	Text string
	Tone Tone
}

// Section prints a table under a title, or the text empty if it has no rows.
func (p *Printer) Section(title string, g *Grid, empty string) {
	p.Printf("\n%s\n", Toned{title, Title})
	p.Table(g, empty)
}

// Table prints a table, or the text empty if it has no rows.
func (p *Printer) Table(g *Grid, empty string) {
	if p.Err == nil {
		p.Err = g.write(p.W, p.Colours, empty)
	}
}

// Grid is a table with aligned columns and a header row.
type Grid struct {
	head []string
	rows [][]string
	tone map[[2]int]Tone // by row and column
}

// Tone is the colour of a text on a terminal.
type Tone string

// The tones are parameters of SGR (ECMA-48, "Select Graphic Rendition").
const (
	Plain Tone = ""
	Good  Tone = "32"
	Warn  Tone = "33"
	Bad   Tone = "31"
	Title Tone = "1"
)

// NewGrid returns a table without rows.
func NewGrid(head ...string) *Grid { return &Grid{head: head, tone: map[[2]int]Tone{}} }

// GridOf returns a table with a row for each element of a list.
func GridOf[T any](list []T, row func(T) []any, head ...string) *Grid {
	g := NewGrid(head...)
	for _, v := range list {
		g.Add(row(v)...)
	}
	return g
}

// Add adds a row. Cells are printed as by fmt.Sprint.
func (g *Grid) Add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = fmt.Sprint(c)
	}
	g.rows = append(g.rows, row)
}

// Tint sets the tone of a column's cell in the row that was added last.
func (g *Grid) Tint(column int, tone Tone) { g.tone[[2]int{len(g.rows) - 1, column}] = tone }

// Len returns the number of rows.
func (g *Grid) Len() int { return len(g.rows) }

const between = "   " // separates columns

// write prints the table, or the text for an empty one.
func (g *Grid) write(w io.Writer, colours bool, empty string) error {
	if len(g.rows) == 0 {
		_, err := fmt.Fprintln(w, empty)
		return err
	}
	lines := append([][]string{g.head}, g.rows...)
	width := make([]int, len(g.head))
	for i, line := range lines {
		for j := range line {
			lines[i][j] = orDash(Printable(line[j]))
			width[j] = max(width[j], utf8.RuneCountInString(lines[i][j]))
		}
	}
	var b strings.Builder
	for i, line := range lines {
		for j, cell := range line {
			b.WriteString(paint(cell, g.tone[[2]int{i - 1, j}], colours))
			if j < len(line)-1 {
				b.WriteString(strings.Repeat(" ", width[j]-utf8.RuneCountInString(cell)) + between)
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// paint wraps printable text in the escape sequences of a tone.
func paint(text string, tone Tone, colours bool) string {
	if !colours || tone == Plain {
		return text
	}
	return "\x1b[" + string(tone) + "m" + text + "\x1b[0m"
}

// Printable escapes everything in s that is not printable: control characters, which a
// terminal would interpret, and characters that reorder or hide text. Names and messages
// come from pods, from EC2 and from other programs, and are not trusted.
func Printable(s string) string { return escape(s, unicode.IsPrint) }

// printableJSON does the same for JSON text and keeps its value: apart from line breaks,
// characters that are not printable occur in strings only.
func printableJSON(s string) string {
	return escape(s, func(r rune) bool { return r == '\n' || unicode.IsPrint(r) })
}

func escape(s string, keep func(rune) bool) string {
	if strings.IndexFunc(s, func(r rune) bool { return !keep(r) || r == unicode.ReplacementChar }) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s { // invalid UTF-8 becomes U+FFFD
		switch {
		case keep(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
