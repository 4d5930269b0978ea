package pool

import "net/netip"

// at is the address of block to that stands where addr stands in block from. The
// blocks of a pair have as many addresses each, so that they differ in the bits
// before the host part only.
func at(addr netip.Addr, from, to netip.Prefix) netip.Addr {
	host := addr.As16()
	out := to.Masked().Addr().As16()
	for i, bits := len(out)-1, from.Addr().BitLen()-from.Bits(); bits > 0; i, bits = i-1, bits-8 {
		mask := byte(0xff)
		if bits < 8 {
			mask = 1<<bits - 1
		}
		out[i] = out[i]&^mask | host[i]&mask
	}
	a := netip.AddrFrom16(out)
	if to.Addr().Is4() {
		a = a.Unmap()
	}
	return a
}

// sizeOf counts the addresses of a block, up to 2^30.
func sizeOf(p netip.Prefix) int { return 1 << min(p.Addr().BitLen()-p.Bits(), maxBits) }

// maxBits caps counts: no node has as many pods.
const maxBits = 30
