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

// Offsets in the header of a bzImage (Documentation/arch/x86/boot.rst of Linux: "The Real-Mode Kernel Header").
const (
	setupSectsAt    = 0x1f1
	headerMagicAt   = 0x202
	versionAt       = 0x206
	payloadOffsetAt = 0x248
	payloadLengthAt = 0x24c
	headerEnd       = 0x250

	sector           = 512
	oldSetupSects    = 4     // default if 0
	payloadSinceBoot = 0x208 // version of the protocol that has the payload offset
)

// xzMagic starts an .xz file (The .xz File Format, 2.1.1.1).
var xzMagic = []byte{0xfd, '7', 'z', 'X', 'Z', 0}

// payload returns the compressed kernel in a bzImage.
func payload(image []byte) ([]byte, error) {
	if len(image) < headerEnd || string(image[headerMagicAt:headerMagicAt+4]) != "HdrS" {
		return nil, errors.New("not a bzImage")
	}
	if v := binary.LittleEndian.Uint16(image[versionAt:]); v < payloadSinceBoot {
		return nil, fmt.Errorf("boot protocol is %#x, want %#x or later", v, payloadSinceBoot)
	}
	sects := uint64(image[setupSectsAt])
	if sects == 0 {
		sects = oldSetupSects
	}
	from := (sects+1)*sector + uint64(binary.LittleEndian.Uint32(image[payloadOffsetAt:]))
	to := from + uint64(binary.LittleEndian.Uint32(image[payloadLengthAt:]))
	if to > uint64(len(image)) || from >= to {
		return nil, fmt.Errorf("kernel is in bytes %d to %d, but the file has %d", from, to, len(image))
	}
	return image[from:to], nil
}

// vmlinux unpacks the kernel of a bzImage. QEMU starts it through its PVH entry, so that the guest need not unpack it, which
// would be much slower.
func vmlinux(ctx context.Context, image []byte) ([]byte, error) {
	packed, err := payload(image)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(packed, xzMagic) {
		return nil, errors.New("kernel is not compressed with xz, unlike that of Debian 12")
	}
	path, err := program(xz)
	if err != nil {
		return nil, err
	}
	// Its length follows, which is not part of the stream.
	cmd := exec.CommandContext(ctx, path, "--decompress", "--single-stream", "--stdout")
	cmd.Stdin = bytes.NewReader(packed)
	plain, err := output(cmd)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(plain, []byte(elf.ELFMAG)) {
		return nil, errors.New("decompressed kernel is not an ELF file")
	}
	return plain, nil
}

// output runs a command and returns its output. Errors contain its standard error.
func output(cmd *exec.Cmd) ([]byte, error) {
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, bytes.TrimSpace(complaints.Bytes()))
	}
	return out, nil
}
