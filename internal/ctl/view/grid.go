package view

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

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

// Add adds a row.
func (g *Grid) Add(cells ...string) { g.rows = append(g.rows, cells) }

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
			lines[i][j] = orDash(printable(line[j]))
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
