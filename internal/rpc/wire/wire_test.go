package wire_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/rpc/wire"
)

// encoder is a message that the plugin sends.
type encoder interface{ Encode() []byte }

// sent has a generator and the generated type of each message that the plugin sends.
var sent = map[string]struct {
	draw   func(*rapid.T) encoder
	theirs proto.Message
}{
	"AddRequest":    {drawEncoder[wire.AddRequest], &rpc.AddRequest{}},
	"DelRequest":    {drawEncoder[wire.DelRequest], &rpc.DelRequest{}},
	"CheckRequest":  {drawEncoder[wire.CheckRequest], &rpc.CheckRequest{}},
	"GCRequest":     {drawEncoder[wire.GCRequest], &rpc.GCRequest{}},
	"StatusRequest": {drawEncoder[wire.StatusRequest], &rpc.StatusRequest{}},
}

func drawEncoder[T encoder](t *rapid.T) encoder { return draw[T](t) }

// same fills a message of the generated code from the fields of the same names of ours.
func same(ours any, theirs protoreflect.Message) proto.Message {
	v := reflect.ValueOf(ours)
	for i := range theirs.Descriptor().Fields().Len() {
		f := theirs.Descriptor().Fields().Get(i)
		from := v.FieldByNameFunc(func(n string) bool { return strings.ToLower(n) == goName(f) })
		switch {
		case f.IsMap():
			for key, value := range from.Seq2() {
				theirs.Mutable(f).Map().Set(protoreflect.ValueOf(key.Interface()).MapKey(), protoreflect.ValueOf(value.Interface()))
			}
		case f.IsList():
			list := theirs.Mutable(f).List()
			for k := range from.Len() {
				if f.Message() == nil {
					list.Append(protoreflect.ValueOf(from.Index(k).Interface()))
				} else {
					same(from.Index(k).Interface(), list.AppendMutable().Message())
				}
			}
		case f.Message() == nil:
			theirs.Set(f, protoreflect.ValueOf(from.Interface()))
		case from.Kind() != reflect.Pointer:
			same(from.Interface(), theirs.Mutable(f).Message())
		case !from.IsNil():
			same(from.Elem().Interface(), theirs.Mutable(f).Message())
		}
	}
	return theirs.Interface()
}

// draw returns a value with random fields, often long ones.
func draw[T any](t *rapid.T) T {
	var v T
	fill(t, reflect.ValueOf(&v).Elem())
	return v
}

func fill(t *rapid.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(rapid.SampledFrom([]string{"", "a", "10.0.0.1/32", "子网", strings.Repeat("x", 300)}).Draw(t, "text"))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Uint32:
		v.SetUint(uint64(rapid.Uint32().Draw(t, "number")))
	case reflect.Pointer:
		if rapid.Bool().Draw(t, "set") {
			v.Set(reflect.New(v.Type().Elem()))
			fill(t, v.Elem())
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), rapid.IntRange(0, 3).Draw(t, "length"), 3))
		for i := range v.Len() {
			fill(t, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(t, key)
			fill(t, value)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	default:
		t.Fatalf("cannot generate values of %v", v.Type())
	}
}

func TestEncodeMatchesGeneratedCode(t *testing.T) {
	for name, m := range sent {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			ours := m.draw(t)
			want, got := same(ours, m.theirs.ProtoReflect().New()), m.theirs.ProtoReflect().New().Interface()
			if err := proto.Unmarshal(ours.Encode(), got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Fatalf("the generated code decodes another message (-want +got):\n%s", diff)
			}
		}))
	}
}

func TestDecodeMatchesGeneratedCode(t *testing.T) {
	t.Run("AddReply", rapid.MakeCheck(func(t *rapid.T) {
		want := draw[wire.AddReply](t)
		var got wire.AddReply
		understood(t, want, &got, got.Decode, &rpc.AddReply{})
	}))
	t.Run("Failure", rapid.MakeCheck(func(t *rapid.T) {
		want := draw[wire.Failure](t)
		var got wire.Failure
		understood(t, want, &got, got.Decode, &rpc.Failure{})
	}))
	if got := (&rpc.Failure{}).ProtoReflect().Descriptor().FullName(); got != wire.FailureType {
		t.Errorf("FailureType = %s, the message is %s", wire.FailureType, got)
	}
}

// understood encodes want with the generated code and compares it with the result of decode in got.
func understood[T any](t *rapid.T, want T, got *T, decode func([]byte) error, theirs proto.Message) {
	b, err := proto.Marshal(same(want, theirs.ProtoReflect()))
	if err == nil {
		err = decode(b)
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, *got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("wire decodes another message (-want +got):\n%s", diff)
	}
}

// A new field of berth.proto has to be added to package wire too, or be listed as irrelevant to
// the plugin.
func TestAllFieldsAreKnown(t *testing.T) {
	for _, pair := range []struct {
		ours   any
		theirs proto.Message
	}{
		{wire.Attachment{}, &rpc.Attachment{}}, {wire.Pod{}, &rpc.Pod{}}, {wire.Annotations{}, &rpc.Annotations{}}, {wire.AddRequest{}, &rpc.AddRequest{}},
		{wire.DelRequest{}, &rpc.DelRequest{}}, {wire.CheckRequest{}, &rpc.CheckRequest{}}, {wire.GCRequest{}, &rpc.GCRequest{}},
		{wire.StatusRequest{}, &rpc.StatusRequest{}}, {wire.AddReply{}, &rpc.AddReply{}}, {wire.Interface{}, &rpc.Interface{}},
		{wire.Route{}, &rpc.Route{}}, {wire.Link{}, &rpc.Link{}}, {wire.Address{}, &rpc.Address{}}, {wire.Failure{}, &rpc.Failure{}},
		{wire.Previous{}, &rpc.Previous{}},
	} {
		d := pair.theirs.ProtoReflect().Descriptor()
		if diff := cmp.Diff(fieldsOf(d), goFields(pair.ours)); diff != "" {
			t.Errorf("fields of %s (-berth.proto +wire):\n%s", d.Name(), diff)
		}
	}
	// These replies have no fields.
	for _, m := range []proto.Message{&rpc.DelReply{}, &rpc.CheckReply{}, &rpc.StatusReply{}} {
		if n := m.ProtoReflect().Descriptor().Fields().Len(); n != 0 {
			t.Errorf("%T has %d fields, which package wire does not know", m, n)
		}
	}
	known := (&rpc.Attachment{}).ProtoReflect().Descriptor().ParentFile()
	if got := known.Messages().Len(); got != 19 {
		t.Errorf("berth.proto has %d messages, this test checks 19", got)
	}
}

func goName(f protoreflect.FieldDescriptor) string {
	return strings.ReplaceAll(string(f.Name()), "_", "")
}

// fieldsOf and goFields return the names of fields in lower case without underscores.
func fieldsOf(d protoreflect.MessageDescriptor) map[string]bool {
	out := map[string]bool{}
	for i := range d.Fields().Len() {
		out[goName(d.Fields().Get(i))] = true
	}
	return out
}

func goFields(v any) map[string]bool {
	out := map[string]bool{}
	for f := range reflect.TypeOf(v).Fields() {
		out[strings.ToLower(f.Name)] = true
	}
	return out
}

// Whatever a daemon answers, decoding ends, and accepts everything that the generated code
// accepts, with the same result.
func FuzzDecode(f *testing.F) {
	for _, m := range []proto.Message{
		&rpc.AddReply{Host: &rpc.Interface{Name: "a", Mac: "b"}, Addresses: []string{"10.0.0.1/32"}, Routes: []*rpc.Route{{Dst: "0.0.0.0/0", Gateway: "169.254.1.1"}}, Mtu: 9001,
			Links: []*rpc.Link{{Sandbox: &rpc.Interface{Name: "eth1"}, Addresses: []*rpc.Address{{Cidr: "192.168.0.5/24", Gateway: "192.168.0.1"}}, Routes: []*rpc.Route{{Dst: "0.0.0.0/0"}}, Mtu: 1442}}},
		&rpc.Failure{Code: 11, Message: "m", Details: "d"},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(append(b, 0xf8, 0x07, 0x01, 0x0d, 1, 2, 3, 4)) // unknown fields
		f.Add(b[:len(b)-1])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got wire.AddReply
		want := &rpc.AddReply{}
		ours, theirs := got.Decode(b), proto.Unmarshal(b, want)
		if theirs == nil && ours != nil {
			t.Fatalf("Decode() = %v, but the generated code accepts the message", ours)
		}
		if theirs == nil && (got.Host.Name != want.GetHost().GetName() || got.MTU != want.GetMtu() || len(got.Addresses) != len(want.GetAddresses()) || len(got.Routes) != len(want.GetRoutes()) || len(got.Links) != len(want.GetLinks())) {
			t.Fatalf("Decode() = %+v, the generated code has %v", got, want)
		}
		_ = new(wire.Failure).Decode(b)
	})
}
