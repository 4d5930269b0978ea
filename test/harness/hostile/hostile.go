// Package hostile has what somebody may write who is not to be trusted, for tests of what
// is printed.
package hostile

import "reflect"

// Text sets a terminal's title, writes
// in red, turns the text round and forges a line.
const Text = "x\x1b]0;owned\a\x7f\u009b31m\u202e\U000e0041\nFORGED\tline\r"

// Fill puts Text into every string that a value points to.
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
