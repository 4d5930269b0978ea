// Command pictures draws the pictures of the documentation: for each NAME.yaml in its folder NAME.svg, which is readable on
// light and on dark pages.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:generate go run .

// picture is the content of a YAML file. Lengths are pixels.
type picture struct {
	Title  string  `json:"title"` // for screen readers
	Width  int     `json:"width"`
	Height int     `json:"height"`
	Boxes  []box   `json:"boxes"` // later ones are drawn over earlier ones
	Arrows []arrow `json:"arrows"`
}

// box is a rectangle with text.
type box struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"` // group (text at the top), berth, other or pod
	Text   string `json:"text"` // lines; those after the first are smaller
	Left   int    `json:"left"`
	Top    int    `json:"top"`
	Width  int    `json:"width"`
	Height int    `json:"height"`
}

// arrow leads from one box to another, along one straight line or with two bends.
type arrow struct {
	From  string `json:"from"` // ID:SIDE:PERCENT, such as daemon:right:50
	To    string `json:"to"`
	Text  string `json:"text"`
	Kind  string `json:"kind"`  // call (default) or packets
	Both  bool   `json:"both"`  // a head at both ends
	Above bool   `json:"above"` // the text is above the line, not on it
	Bend  int    `json:"bend"`  // where a sideways line goes up or down, from the left; 0: in the middle
}

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run draws all pictures of a folder.
func run(dir string) error {
	sources, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(sources) == 0 {
		return errors.Join(fmt.Errorf("no pictures in %s", dir), err)
	}
	for _, source := range sources {
		data, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		svg, err := draw(data)
		if err != nil {
			return fmt.Errorf("%s: %w", source, err)
		}
		if err := os.WriteFile(strings.TrimSuffix(source, ".yaml")+".svg", svg, 0o644); err != nil { //nolint:gosec // a public file
			return err
		}
	}
	return nil
}

// style has both themes: pages of either kind show a picture by the reader's preference, and its own background keeps it
// readable where they differ.
const style = `<style>
.bg{fill:#ffffff}.group{fill:#f3f5f8;stroke:#9aa4b2}.berth{fill:#dbe8ff;stroke:#2f6fde}.other{fill:#ffffff;stroke:#6b7280}.pod{fill:#dff5e6;stroke:#2e8b57}
text{font-family:system-ui,sans-serif;font-size:15px;fill:#1f2937}.small{font-size:13px;fill:#4b5563}.name{font-weight:600}
.line{fill:none;stroke:#4b5563;stroke-width:1.6}.packets{stroke:#2e8b57;stroke-width:2.6}.head{fill:#4b5563}.halo{paint-order:stroke;stroke:#ffffff;stroke-width:5px;stroke-linejoin:round}
@media (prefers-color-scheme:dark){
.bg{fill:#1b1b1f}.group{fill:#24262d;stroke:#5b6472}.berth{fill:#1d3461;stroke:#8ab4ff}.other{fill:#2d3038;stroke:#9aa4b2}.pod{fill:#173d2a;stroke:#6fcf97}
text{fill:#e5e7eb}.small{fill:#b6bdc8}.line{stroke:#b6bdc8}.packets{stroke:#6fcf97}.head{fill:#b6bdc8}.halo{stroke:#1b1b1f}
}
</style>
`

// draw returns the picture of a YAML file as SVG.
func draw(source []byte) ([]byte, error) {
	var p picture
	if err := yaml.UnmarshalStrict(source, &p); err != nil {
		return nil, err
	}
	if p.Title == "" || p.Width <= 0 || p.Height <= 0 {
		return nil, errors.New("title, width and height are required")
	}
	boxes := map[string]box{}
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">`+"\n", p.Width, p.Height, html.EscapeString(p.Title))
	out.WriteString("<!-- Generated from docs/pictures by \"make generate\". -->\n" + style)
	out.WriteString(`<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path class="head" d="M0 0L10 5L0 10z"/></marker></defs>` + "\n")
	fmt.Fprintf(&out, `<rect class="bg" width="%d" height="%d" rx="12"/>`+"\n", p.Width, p.Height)
	for _, b := range p.Boxes {
		if err := b.draw(&out, p); err != nil {
			return nil, fmt.Errorf("box %q: %w", b.ID, err)
		}
		if _, twice := boxes[b.ID]; twice {
			return nil, fmt.Errorf("box %q: there are two of this name", b.ID)
		}
		boxes[b.ID] = b
	}
	for _, a := range p.Arrows {
		if err := a.draw(&out, boxes); err != nil {
			return nil, fmt.Errorf("arrow from %s to %s: %w", a.From, a.To, err)
		}
	}
	out.WriteString("</svg>\n")
	return out.Bytes(), nil
}

func (b box) draw(out *bytes.Buffer, p picture) error {
	switch b.Kind {
	case "group", "berth", "other", "pod":
	default:
		return fmt.Errorf("kind: %q, want group, berth, other or pod", b.Kind)
	}
	if b.Width <= 0 || b.Height <= 0 || b.Left < 0 || b.Top < 0 || b.Left+b.Width > p.Width || b.Top+b.Height > p.Height {
		return errors.New("it is not within the picture")
	}
	fmt.Fprintf(out, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="8" stroke-width="1.4"/>`+"\n", b.Kind, b.Left, b.Top, b.Width, b.Height)
	lines := strings.Split(strings.TrimSpace(b.Text), "\n")
	const leading = 19
	y := b.Top + b.Height/2 - (len(lines)-1)*leading/2 + 5
	if b.Kind == "group" {
		y = b.Top + 22
	}
	for i, line := range lines {
		class := "name"
		if i > 0 {
			class = "small"
		}
		fmt.Fprintf(out, `<text class="%s" x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", class, b.Left+b.Width/2, y+i*leading, html.EscapeString(line))
	}
	return nil
}

// end returns the point of one end of an arrow, and whether the arrow leaves it sideways.
func end(at string, boxes map[string]box) (x, y int, sideways bool, err error) {
	var percent int
	parts := strings.Split(at, ":")
	if len(parts) != 3 {
		return 0, 0, false, fmt.Errorf("%q, want ID:SIDE:PERCENT", at)
	}
	b, known := boxes[parts[0]]
	if _, err := fmt.Sscanf(parts[2], "%d", &percent); err != nil || !known {
		return 0, 0, false, fmt.Errorf("%q: no such box, or no number: %w", at, err)
	}
	switch parts[1] {
	case "left":
		return b.Left, b.Top + b.Height*percent/100, true, nil
	case "right":
		return b.Left + b.Width, b.Top + b.Height*percent/100, true, nil
	case "top":
		return b.Left + b.Width*percent/100, b.Top, false, nil
	case "bottom":
		return b.Left + b.Width*percent/100, b.Top + b.Height, false, nil
	}
	return 0, 0, false, fmt.Errorf("%q: side %q, want left, right, top or bottom", at, parts[1])
}

func (a arrow) draw(out *bytes.Buffer, boxes map[string]box) error {
	x1, y1, sideways, err := end(a.From, boxes)
	if err != nil {
		return err
	}
	x2, y2, _, err := end(a.To, boxes)
	if err != nil {
		return err
	}
	midX, midY := (x1+x2)/2, (y1+y2)/2
	textX := midX
	if a.Bend > 0 { // the text is on the last part
		midX, midY, textX = a.Bend, y2, (a.Bend+x2)/2
	}
	path := fmt.Sprintf("M%d %dV%dH%dV%d", x1, y1, midY, x2, y2)
	if sideways {
		path = fmt.Sprintf("M%d %dH%dV%dH%d", x1, y1, midX, y2, x2)
	}
	class, start := "line", ""
	if a.Kind == "packets" {
		class += " packets"
	}
	if a.Both {
		start = ` marker-start="url(#head)"`
	}
	fmt.Fprintf(out, `<path class="%s" d="%s" marker-end="url(#head)"%s/>`+"\n", class, path, start)
	textY := midY + 5
	if a.Above {
		textY = midY - 8
	}
	for i, line := range strings.Split(strings.TrimSpace(a.Text), "\n") {
		if line != "" {
			fmt.Fprintf(out, `<text class="small halo" x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", textX, textY+17*i, html.EscapeString(line))
		}
	}
	return nil
}
