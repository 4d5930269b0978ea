package manifests

import (
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/yaml"
)

// Write prints the objects as YAML documents behind the comments. Text of objects in comments stays in its line.
func (out *Output) Write(w io.Writer) error {
	var b strings.Builder
	comment := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		b.WriteString("# " + title + "\n")
		for _, line := range lines {
			b.WriteString("#   " + strings.ReplaceAll(line, "\n", " ") + "\n")
		}
	}
	comment("Before you apply these objects:", out.Comments)
	comment("Not carried over, because Berth has nothing for it:", out.Lost)
	for _, o := range out.Objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			return fmt.Errorf("write an object of type %T: %w", o, err)
		}
		b.WriteString("---\n")
		b.Write(text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
