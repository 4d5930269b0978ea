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

// sent pairs a value generator for each message that the plugin sends with the
// generated type of the same message.
var sent = []struct {
	name string
	make func(*rapid.T) (encoder, proto.Message)
}{
	{"AddRequest", func(t *rapid.T) (encoder, proto.Message) {
		r := draw[wire.AddRequest](t)
		m := &rpc.AddRequest{
			Attachment: attachment(r.Attachment), Netns: r.Netns, Mtu: r.MTU,
			Pod: &rpc.Pod{Namespace: r.Pod.Namespace, Name: r.Pod.Name, Uid: r.Pod.UID},
		}
		if r.Annotations != nil {
			m.Annotations = &rpc.Annotations{Pool: r.Annotations.Pool}
		}
		return r, m
	}},
	{"DelRequest", func(t *rapid.T) (encoder, proto.Message) {
		r := draw[wire.DelRequest](t)
		return r, &rpc.DelRequest{Attachment: attachment(r.Attachment), Netns: r.Netns}
	}},
	{"CheckRequest", func(t *rapid.T) (encoder, proto.Message) {
		r := draw[wire.CheckRequest](t)
		return r, &rpc.CheckRequest{Attachment: attachment(r.Attachment), Netns: r.Netns, Addresses: r.Addresses}
	}},
	{"GCRequest", func(t *rapid.T) (encoder, proto.Message) {
		r := draw[wire.GCRequest](t)
		m := &rpc.GCRequest{Network: r.Network}
		for _, a := range r.Valid {
			m.Valid = append(m.Valid, attachment(a))
		}
		return r, m
	}},
	{"StatusRequest", func(t *rapid.T) (encoder, proto.Message) {
		r := draw[wire.StatusRequest](t)
		return r, &rpc.StatusRequest{Network: r.Network}
	}},
}

func attachment(a wire.Attachment) *rpc.Attachment {
	return &rpc.Attachment{Network: a.Network, ContainerId: a.ContainerID, IfName: a.IfName}
}

// draw makes a value whose fields are filled by chance, often to the brim.
func draw[T any](t *rapid.T) T {
	var v T
	fill(t, reflect.ValueOf(&v).Elem())
	return v
}

func fill(t *rapid.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(rapid.SampledFrom([]string{"", "a", "10.0.0.1/32", "子网", strings.Repeat("x", 300)}).Draw(t, "text"))
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
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	default:
		t.Fatalf("no values for %v", v.Type())
	}
}

func TestWhatIsSentIsUnderstood(t *testing.T) {
	for _, m := range sent {
		t.Run(m.name, rapid.MakeCheck(func(t *rapid.T) {
			ours, want := m.make(t)
			got := want.ProtoReflect().New().Interface()
			if err := proto.Unmarshal(ours.Encode(), got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Fatalf("daemon reads otherwise (-want +got):\n%s", diff)
			}
		}))
	}
}

func TestWhatIsReceivedIsUnderstood(t *testing.T) {
	t.Run("AddReply", rapid.MakeCheck(func(t *rapid.T) {
		want := draw[wire.AddReply](t)
		m := &rpc.AddReply{
			Host:    &rpc.Interface{Name: want.Host.Name, Mac: want.Host.MAC},
			Sandbox: &rpc.Interface{Name: want.Sandbox.Name, Mac: want.Sandbox.MAC}, Addresses: want.Addresses, Mtu: want.MTU,
		}
		for _, r := range want.Routes {
			m.Routes = append(m.Routes, &rpc.Route{Dst: r.Dst, Gateway: r.Gateway})
		}
		var got wire.AddReply
		if err := got.Decode(marshal(t, m)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("plugin reads otherwise (-want +got):\n%s", diff)
		}
	}))
	t.Run("Failure", rapid.MakeCheck(func(t *rapid.T) {
		want := draw[wire.Failure](t)
		var got wire.Failure
		if err := got.Decode(marshal(t, &rpc.Failure{Code: want.Code, Message: want.Message, Details: want.Details})); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("plugin reads otherwise (-want +got):\n%s", diff)
		}
	}))
	if got := (&rpc.Failure{}).ProtoReflect().Descriptor().FullName(); got != wire.FailureType {
		t.Errorf("FailureType is %s, the message is %s", wire.FailureType, got)
	}
}

func marshal(t *rapid.T, m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A field that is new in berth.proto has to be added here too, or be listed as
// none of the plugin's business.
func TestNoFieldIsForgotten(t *testing.T) {
	for _, pair := range []struct {
		ours   any
		theirs proto.Message
	}{
		{wire.Attachment{}, &rpc.Attachment{}}, {wire.Pod{}, &rpc.Pod{}}, {wire.Annotations{}, &rpc.Annotations{}}, {wire.AddRequest{}, &rpc.AddRequest{}},
		{wire.DelRequest{}, &rpc.DelRequest{}}, {wire.CheckRequest{}, &rpc.CheckRequest{}}, {wire.GCRequest{}, &rpc.GCRequest{}},
		{wire.StatusRequest{}, &rpc.StatusRequest{}}, {wire.AddReply{}, &rpc.AddReply{}}, {wire.Interface{}, &rpc.Interface{}},
		{wire.Route{}, &rpc.Route{}}, {wire.Failure{}, &rpc.Failure{}},
	} {
		d := pair.theirs.ProtoReflect().Descriptor()
		if diff := cmp.Diff(fieldsOf(d), goFields(pair.ours)); diff != "" {
			t.Errorf("fields of %s (-berth.proto +wire):\n%s", d.Name(), diff)
		}
	}
	// These replies say nothing that the plugin needs.
	for _, m := range []proto.Message{&rpc.DelReply{}, &rpc.CheckReply{}, &rpc.StatusReply{}} {
		if n := m.ProtoReflect().Descriptor().Fields().Len(); n != 0 {
			t.Errorf("%T has %d fields that package wire does not know", m, n)
		}
	}
	known := (&rpc.Attachment{}).ProtoReflect().Descriptor().ParentFile()
	if got := known.Messages().Len(); got != 16 {
		t.Errorf("berth.proto has %d messages, 16 are looked at here", got)
	}
}

// fieldsOf and goFields name fields alike: lower case, no underscores, sorted as declared.
func fieldsOf(d protoreflect.MessageDescriptor) map[string]bool {
	out := map[string]bool{}
	for i := range d.Fields().Len() {
		out[strings.ReplaceAll(string(d.Fields().Get(i).Name()), "_", "")] = true
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

// FuzzDecode: whatever a daemon answers, decoding ends, and agrees with the
// generated code on what it takes.
func FuzzDecode(f *testing.F) {
	for _, m := range []proto.Message{
		&rpc.AddReply{Host: &rpc.Interface{Name: "a", Mac: "b"}, Addresses: []string{"10.0.0.1/32"}, Routes: []*rpc.Route{{Dst: "0.0.0.0/0", Gateway: "169.254.1.1"}}, Mtu: 9001},
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
			t.Fatalf("the generated code takes it, Decode says %v", ours)
		}
		if theirs == nil && (got.Host.Name != want.GetHost().GetName() || got.MTU != want.GetMtu() || len(got.Addresses) != len(want.GetAddresses()) || len(got.Routes) != len(want.GetRoutes())) {
			t.Fatalf("read %+v, the generated code %v", got, want)
		}
		_ = new(wire.Failure).Decode(b)
	})
}
