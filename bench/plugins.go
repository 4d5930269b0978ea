package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// install copies plugins that are measured to one directory on a disk, as an
// installer does on a node. Where a program lies and who wrote it there counts:
// of a file on a tmpfs, or as the linker leaves it, the kernel has smaller pages,
// and the start of the same plugin takes up to a tenth longer.
func (b *bench) install(programs ...string) error {
	b.pluginDir = filepath.Join(b.varDir, "bin")
	if err := os.MkdirAll(b.pluginDir, 0o755); err != nil {
		return fmt.Errorf("make the plugins' directory: %w", err)
	}
	dir, err := os.OpenRoot(b.pluginDir)
	if err != nil {
		return fmt.Errorf("open the plugins' directory: %w", err)
	}
	defer dir.Close()
	for _, from := range programs {
		program, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("install a plugin: %w", err)
		}
		if err := dir.WriteFile(filepath.Base(from), program, 0o755); err != nil {
			return fmt.Errorf("install a plugin: %w", err)
		}
	}
	return nil
}
