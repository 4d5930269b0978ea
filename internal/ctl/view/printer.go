package view

import (
	"fmt"
	"io"
)

// Printer prints sections until writing fails.
type Printer struct {
	W       io.Writer
	Colours bool
	Err     error
}

// Printf prints what is in the arguments on one line each.
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

// Toned is a text for Printf that stands out.
type Toned struct {
	Text string
	Tone Tone
}

// Section prints a table under a title, or what to say of an empty one.
func (p *Printer) Section(title string, g *Grid, empty string) {
	p.Printf("\n%s\n", Toned{title, Title})
	p.Table(g, empty)
}

// Table prints a table, or what to say of an empty one.
func (p *Printer) Table(g *Grid, empty string) {
	if p.Err == nil {
		p.Err = g.write(p.W, p.Colours, empty)
	}
}
