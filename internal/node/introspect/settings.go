package introspect

// SettingsPath is where programs serve their settings from their first moment: berthd
// on its introspection address, berth-operator where it listens at a loopback address.
const SettingsPath = "/settings"

// Settings are those that a program runs with.
type Settings struct {
	Version  string    `json:"version"`
	Settings []Setting `json:"settings"` // all there are, in the order of the reference
	// Unknown are environment variables that begin with BERTH_ and mean nothing.
	Unknown []string `json:"unknown,omitempty"`
}

// Setting is one, as it was given. Passwords in it are taken out.
type Setting struct {
	Name  string `json:"name"`  // of its flag, without dashes
	Value string `json:"value"` // empty: not set
	From  string `json:"from"`  // the flag or variable, or that it is the default
}

// Get returns a setting's value.
func (s Settings) Get(name string) (string, bool) {
	for _, one := range s.Settings {
		if one.Name == name {
			return one.Value, true
		}
	}
	return "", false
}
