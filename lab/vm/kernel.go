package vm

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
)

// Places in the header of a bzImage (Documentation/arch/x86/boot.rst of Linux: "The
// Real-Mode Kernel Header").
const (
	setupSectsAt    = 0x1f1
	headerMagicAt   = 0x202
	versionAt       = 0x206
	payloadOffsetAt = 0x248
	payloadLengthAt = 0x24c
	headerEnd       = 0x250

	sector           = 512
	oldSetupSects    = 4     // what 0 stands for
	payloadSinceBoot = 0x208 // the version of the protocol that has the payload's place
)

// xzMagic begins an .xz file (The .xz File Format, 2.1.1.1).
var xzMagic = []byte{0xfd, '7', 'z', 'X', 'Z', 0}

// payload is the compressed kernel in a bzImage.
func payload(image []byte) ([]byte, error) {
	if len(image) < headerEnd || string(image[headerMagicAt:headerMagicAt+4]) != "HdrS" {
		return nil, errors.New("it is no bzImage")
	}
	if v := binary.LittleEndian.Uint16(image[versionAt:]); v < payloadSinceBoot {
		return nil, fmt.Errorf("its boot protocol is %#x, want %#x or later", v, payloadSinceBoot)
	}
	sects := uint64(image[setupSectsAt])
	if sects == 0 {
		sects = oldSetupSects
	}
	from := (sects+1)*sector + uint64(binary.LittleEndian.Uint32(image[payloadOffsetAt:]))
	to := from + uint64(binary.LittleEndian.Uint32(image[payloadLengthAt:]))
	if to > uint64(len(image)) || from >= to {
		return nil, fmt.Errorf("its kernel is in bytes %d to %d, but it has %d", from, to, len(image))
	}
	return image[from:to], nil
}

// vmlinux unpacks the kernel of a bzImage. QEMU starts it by its PVH entry, which saves
// that the guest unpacks it, far slower than the host does.
func vmlinux(ctx context.Context, image []byte) ([]byte, error) {
	packed, err := payload(image)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(packed, xzMagic) {
		return nil, errors.New("its kernel is not compressed by xz, as Debian 12's is")
	}
	path, err := program(xz)
	if err != nil {
		return nil, err
	}
	// After it comes its length, which is no part of the stream.
	cmd := exec.CommandContext(ctx, path, "--decompress", "--single-stream", "--stdout")
	cmd.Stdin = bytes.NewReader(packed)
	plain, err := output(cmd)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(plain, []byte(elf.ELFMAG)) {
		return nil, errors.New("what it has compressed is no ELF file")
	}
	return plain, nil
}

// output runs a command and returns what it printed. The error has its standard error output.
func output(cmd *exec.Cmd) ([]byte, error) {
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, bytes.TrimSpace(complaints.Bytes()))
	}
	return out, nil
}
