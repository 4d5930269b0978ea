package view

import (
	"fmt"
	"io"
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
			args[i] = printable(a)
		case Toned:
			args[i] = paint(printable(a.Text), a.Tone, p.Colours)
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
