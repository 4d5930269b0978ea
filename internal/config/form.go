package config

// Form is what a setting takes, as far as that can be told without parsing it:
// for those who write settings down with types, such as the values of the chart.
type Form struct {
	Kind      Kind
	Low, High int      // of an Integer, both included
	Words     []string // those that a Word may be, in lower case
}

// Kind is the type of a setting.
type Kind string

// The kinds.
const (
	Text     Kind = "text"
	Path     Kind = "path" // absolute
	Word     Kind = "word"
	Boolean  Kind = "boolean"
	Integer  Kind = "integer"
	Duration Kind = "duration" // in Go's notation, or a number of seconds
	List     Kind = "list"     // texts, separated by commas
	Pairs    Kind = "pairs"    // key=value, separated by commas
)

// Form is what the setting takes.
func (s Setting) Form() Form { return s.parse.form }

// Settings are those of berthd, in the order of the reference.
func Settings() []Setting { return table(&Config{}) }

// OperatorSettings are those of berth-operator, in the order of the reference.
func OperatorSettings() []Setting { return operatorTable(&Operator{}) }
