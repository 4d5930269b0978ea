// Package version has the version of Berth's programs.
package version

import "runtime/debug"

// Version is set by the linker in builds made with `make build`.
var Version = "dev"

// String returns Version or, for a program built by plain `go build` or `go install`, the version
// recorded by the Go toolchain: the module's version, else the commit, else "dev".
func String() string {
	if Version != "dev" {
		return Version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Version
	}
	return fromBuildInfo(info)
}

func fromBuildInfo(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	var commit, dirty string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if commit == "" {
		return "dev"
	}
	return "dev-" + commit + dirty
}
