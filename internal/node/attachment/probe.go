package attachment

import "fmt"

// probeFile is removed at the next start when a crash left it.
const probeFile = tmpPrefix + "probe"

// Probe tells whether records can be written: it writes a file as a record is
// written, and removes it. Not to be called concurrently.
func (s *Store) Probe() error {
	if err := s.write(probeFile, []byte("can this be written?\n")); err != nil {
		return fmt.Errorf("writing into %s: %w", s.dir, err)
	}
	if err := s.remove(probeFile); err != nil {
		return fmt.Errorf("removing from %s: %w", s.dir, err)
	}
	return nil
}
