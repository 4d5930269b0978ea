// Package egress is the operator's side of Egresses themselves.
package egress
