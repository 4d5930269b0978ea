package kubectl

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// WriteReference writes docs/reference/kubectl-berth.md: the commands and their flags.
func WriteReference(w io.Writer) error {
	root := New(Options{})
	var b strings.Builder
	fmt.Fprintf(&b, `# kubectl berth

<!-- Generated from internal/ctl/kubectl by "make generate". -->

%s

For the purpose of each command and the required permissions, see
[kubectl berth and berthctl](../guides/kubectl-berth.md#inspect-the-cluster).

`, root.Long)
	writeCommands(&b, root, "")
	b.WriteString("## Flags of all commands\n\n")
	writeFlags(&b, root.PersistentFlags())
	_, err := io.WriteString(w, strings.TrimRight(b.String(), "\n")+"\n")
	return err
}

// writeCommands writes the commands below one, whose words are before theirs.
func writeCommands(b *strings.Builder, of *cobra.Command, before string) {
	for _, c := range of.Commands() {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		fmt.Fprintf(b, "## %s%s\n\n", before, c.Name())
		text := c.Long
		if text == "" {
			text = c.Short + "."
		}
		fmt.Fprintf(b, "```text\nkubectl berth %s%s\n```\n\n%s\n\n", before, c.Use, text)
		writeFlags(b, c.LocalNonPersistentFlags())
		writeCommands(b, c, before+c.Name()+" ")
	}
}

func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	rows := ""
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name += ", `-" + f.Shorthand + "`"
		}
		def := ""
		if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" {
			def = "`" + f.DefValue + "`"
		}
		rows += fmt.Sprintf("| %s | %s | %s |\n", name, def, cell(f))
	})
	if rows != "" {
		fmt.Fprintf(b, "| flag | default | meaning |\n|---|---|---|\n%s\n", rows)
	}
}

// cell returns a flag's description with its possible values.
func cell(f *pflag.Flag) string {
	text := strings.TrimSuffix(f.Usage, ".")
	if o, ok := f.Value.(*output); ok {
		text += ": " + strings.ReplaceAll(o.Type(), "|", ", ")
	}
	return strings.ReplaceAll(text, "|", "\\|")
}
