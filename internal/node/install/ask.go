package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// Bounds of asking a plugin, whose answer is a line of JSON.
const (
	askTimeout = 5 * time.Second
	mostOutput = 64 << 10              // bytes
	writePause = 20 * time.Millisecond // while the file is still being written
)

// exitNotFound is the exit status of a dynamic loader that misses a library, and of a shell that
// misses a command.
const exitNotFound = 127

// asker asks plugins which CNI versions they speak, each file once.
type asker struct {
	known   map[string]known // by path
	timeout time.Duration
}

type known struct {
	file   identity
	answer answer
}

// identity identifies the content of a file: every change of the file changes it.
type identity struct {
	dev, ino     uint64
	size         int64
	mode         fs.FileMode
	mtime, ctime syscall.Timespec
}

func identify(info fs.FileInfo) identity {
	id := identity{size: info.Size(), mode: info.Mode()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		id.dev, id.ino, id.mtime, id.ctime = st.Dev, st.Ino, st.Mtim, st.Ctim
	}
	return id
}

// ask returns the CNI versions of a plugin of a chain. conf is its entry in the list.
func (k *asker) ask(ctx context.Context, dir string, conf pluginConf) answer {
	path := filepath.Join(dir, conf.Type)
	info, err := os.Stat(path)
	if err != nil {
		return answer{plugin: conf.Type, broken: err.Error()}
	}
	file := identify(info)
	if k.known[path].file == file {
		return k.known[path].answer
	}
	a, final := k.askFile(ctx, path, info, conf)
	a.plugin = conf.Type
	if final {
		k.known[path] = known{file, a}
	}
	return a
}

// askFile executes a plugin. final: the answer would be the same another time, unlike when the machine
// is too busy.
func (k *asker) askFile(ctx context.Context, path string, info fs.FileInfo, conf pluginConf) (_ answer, final bool) {
	if info.Mode().Perm()&0o111 == 0 {
		return answer{broken: path + " is not executable"}, true
	}
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	said, err := invoke.GetVersionInfo(ctx, path, &bounded{})
	for errors.Is(err, syscall.ETXTBSY) && pause(ctx, writePause) {
		said, err = invoke.GetVersionInfo(ctx, path, &bounded{})
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return answer{broken: fmt.Sprintf("%s did not answer VERSION within %v", path, k.timeout)}, false
	case errors.Is(err, syscall.ENOEXEC):
		return answer{broken: path + " is no program for this machine: is it for another architecture?"}, true
	case isNotFromHere(err), errors.As(err, &exit) && exit.ExitCode() == exitNotFound:
		// The file is executable. Its loader or libraries are missing in berthd's container, which
		// says nothing about the node.
		return answer{versions: common, unasked: "it needs what berthd's container lacks, such as libraries"}, true
	case err != nil:
		return answer{broken: fmt.Sprintf("%s does not answer VERSION: %.200q", path, err.Error())}, !passes(err)
	}
	versions := intersection(spoken, said.SupportedVersions())
	if len(versions) == 0 {
		return answer{broken: fmt.Sprintf("%s speaks none of CNI %s", path, list(spoken))}, true
	}
	final = true
	if newest(versions) == withStatus {
		err := askStatus(ctx, path, conf)
		if !hasStatus(err) {
			versions = versions[:len(versions)-1]
		}
		final = ctx.Err() == nil && !passes(err)
	}
	return answer{versions: versions}, final
}

// passes reports whether a call failed for a temporary reason: the plugin was killed, as by the OOM
// killer, or could not be started for lack of resources.
func passes(err error) bool {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return !exit.Exited()
	}
	return slices.ContainsFunc([]syscall.Errno{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.EIO}, func(short syscall.Errno) bool { return errors.Is(err, short) })
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func isNotFromHere(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM)
}

// askStatus verifies STATUS for a plugin that claims withStatus: if the claim were wrong, every STATUS
// of the list would fail and the node would never be Ready.
func askStatus(ctx context.Context, path string, conf pluginConf) error {
	stdin, err := json.Marshal(struct {
		CNIVersion string `json:"cniVersion"`
		Name       string `json:"name"`
		pluginConf
	}{withStatus, "version", conf})
	if err != nil {
		return err
	}
	args := invoke.Args{Command: "STATUS", Path: filepath.Dir(path)}
	_, err = (&bounded{}).ExecPlugin(ctx, path, stdin, args.AsEnv())
	return err
}

// hasStatus reports by a plugin's answer to STATUS whether it implements it. "Not available" is an
// answer (CNI specification 1.1.0, "STATUS").
func hasStatus(err error) bool {
	var e *types.Error
	return err == nil || errors.As(err, &e) && (e.Code == types.ErrPluginNotAvailable || e.Code == types.ErrLimitedConnectivity)
}

// bounded executes untrusted plugins: their output is bounded, they get no environment of berthd's,
// and their processes end with ctx.
type bounded struct{ version.PluginDecoder }

var _ invoke.Exec = (*bounded)(nil)

// ExecPlugin implements invoke.Exec. The CNI error of a plugin is returned as *types.Error.
func (*bounded) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, e := range env {
		if strings.HasPrefix(e, "CNI_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Stdin = bytes.NewReader(stdin)
	stdout := &limited{to: &out, left: mostOutput}
	cmd.Stdout = stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("executing it: %w", err)
	}
	err := cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // processes that it left
	if stdout.over {
		return nil, errTooMuch // the cause of any other error
	}
	if err == nil {
		return out.Bytes(), nil
	}
	var exit *exec.ExitError
	var said types.Error
	if errors.As(err, &exit) && json.Unmarshal(out.Bytes(), &said) == nil && (said.Code != 0 || said.Msg != "") {
		return nil, &said
	}
	return nil, err
}

// FindInPath implements invoke.Exec.
func (*bounded) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// limited accepts a number of bytes and then fails.
type limited struct {
	to   io.Writer
	left int
	over bool
}

var errTooMuch = fmt.Errorf("it printed more than %d bytes", mostOutput)

// Write implements io.Writer.
func (l *limited) Write(b []byte) (int, error) {
	if len(b) > l.left {
		l.over = true
		return 0, errTooMuch
	}
	l.left -= len(b)
	return l.to.Write(b)
}
