// Package hostile provides text that an attacker might write, for tests of printed output.
package hostile

import "reflect"

// Text sets a terminal's title, switches to red, reverses the text direction and forges a line.
const Text = "x\x1b]0;owned\a\x7f\u009b31m\u202e\U000e0041\nFORGED\tline\r"

// Fill sets every string reachable from a pointer to Text.
func Fill(v any) { fill(reflect.ValueOf(v).Elem()) }

func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(Text)
	case reflect.Pointer:
		if !v.IsNil() {
			fill(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	}
}
