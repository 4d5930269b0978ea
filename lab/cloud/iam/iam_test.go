package iam

import (
	"strings"
	"testing"
)

const eniARN = "arn:aws:ec2:lab-1:123456789012:network-interface/eni-1"

func TestDecide(t *testing.T) {
	tagged := func(kv ...string) map[string][]string {
		m := map[string][]string{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = append(m[kv[i]], kv[i+1])
		}
		return m
	}
	// fromInstance are the keys of a request of one instance for others.
	fromInstance := func(source string, target ...string) map[string][]string {
		return map[string][]string{SourceInstance: {"arn:aws:ec2:lab-1:1:instance/" + source}, InstanceID: target}
	}
	cluster := tagged(ResourceTag("berth.dev/cluster"), "lab")
	for _, tt := range []struct {
		name      string
		statement string // further fields of an Allow of ec2:DeleteNetworkInterface on the resource
		keys      map[string][]string
		want      Decision
	}{
		{"no condition", ``, nil, Allowed},
		{"equal", `"StringEquals": {"aws:ResourceTag/berth.dev/cluster": "lab"}`, cluster, Allowed},
		{"key with EC2's own prefix", `"StringEquals": {"ec2:ResourceTag/berth.dev/cluster": "lab"}`, cluster, Allowed},
		{"key in different case", `"StringEquals": {"aws:resourceTag/Berth.dev/Cluster": "lab"}`, cluster, Allowed},
		{"value in different case", `"StringEquals": {"aws:ResourceTag/berth.dev/cluster": "Lab"}`, cluster, NotAllowed},
		{"value in different case, ignored", `"StringEqualsIgnoreCase": {"aws:ResourceTag/berth.dev/cluster": "Lab"}`, cluster, Allowed},
		{"no wildcards in StringEquals", `"StringEquals": {"aws:ResourceTag/berth.dev/cluster": "l*"}`, cluster, NotAllowed},
		{"another value", `"StringEquals": {"aws:ResourceTag/berth.dev/cluster": "other"}`, cluster, NotAllowed},
		{"one of several values", `"StringEquals": {"aws:ResourceTag/berth.dev/cluster": ["other", "lab"]}`, cluster, Allowed},
		{"no tag", `"StringEquals": {"aws:ResourceTag/berth.dev/cluster": "lab"}`, nil, NotAllowed},
		{"no tag, IfExists", `"StringEqualsIfExists": {"aws:ResourceTag/berth.dev/cluster": "lab"}`, nil, Allowed},
		{"another value, IfExists", `"StringEqualsIfExists": {"aws:ResourceTag/berth.dev/cluster": "x"}`, cluster, NotAllowed},
		{"tag of the request, not of the resource", `"StringEquals": {"aws:RequestTag/berth.dev/cluster": "lab"}`, cluster, NotAllowed},
		{"not equal", `"StringNotEquals": {"aws:ResourceTag/berth.dev/cluster": ["a", "lab"]}`, cluster, NotAllowed},
		{"not equal without tag", `"StringNotEquals": {"aws:ResourceTag/berth.dev/cluster": "lab"}`, nil, Allowed},
		{"like", `"StringLike": {"aws:ResourceTag/berth.dev/cluster": "l?*"}`, cluster, Allowed},
		{"not like", `"StringLike": {"aws:ResourceTag/berth.dev/cluster": "?l*"}`, cluster, NotAllowed},
		{"like without tag", `"StringLike": {"aws:ResourceTag/berth.dev/cluster": "*"}`, nil, NotAllowed},
		{"all operators must hold", `"StringLike": {"aws:ResourceTag/berth.dev/cluster": "*"}, "StringEquals": {"ec2:CreateAction": "x"}`, cluster, NotAllowed},
		{"all keys must hold", `"StringEquals": {"aws:ResourceTag/berth.dev/cluster": "lab", "ec2:CreateAction": "x"}`, cluster, NotAllowed},
		{"absent", `"Null": {"aws:ResourceTag/berth.dev/cluster": "true"}`, nil, Allowed},
		{"not absent", `"Null": {"aws:ResourceTag/berth.dev/cluster": "true"}`, cluster, NotAllowed},
		{"present", `"Null": {"aws:ResourceTag/berth.dev/cluster": false}`, cluster, Allowed},
		{"not present", `"Null": {"aws:ResourceTag/berth.dev/cluster": false}`, nil, NotAllowed},
		{"all keys in the list", `"ForAllValues:StringEquals": {"aws:TagKeys": ["a", "b", "c"]}`, tagged(TagKeys, "a", TagKeys, "c"), Allowed},
		{"some keys not in the list", `"ForAllValues:StringEquals": {"aws:TagKeys": ["a", "b"]}`, tagged(TagKeys, "a", TagKeys, "c"), NotAllowed},
		{"ForAllValues without keys", `"ForAllValues:StringEquals": {"aws:TagKeys": ["a", "b"]}`, nil, Allowed},
		{"some key in the list", `"ForAnyValue:StringLike": {"aws:TagKeys": "a*"}`, tagged(TagKeys, "b", TagKeys, "ab"), Allowed},
		{"no key in the list", `"ForAnyValue:StringLike": {"aws:TagKeys": "a*"}`, tagged(TagKeys, "b"), NotAllowed},
		{"ForAnyValue without keys", `"ForAnyValue:StringLike": {"aws:TagKeys": "a*"}`, nil, NotAllowed},
		{"an ARN", `"ArnLike": {"ec2:Vpc": "arn:*:ec2:*:*:vpc/vpc-1"}`, tagged(VPC, "arn:aws:ec2:lab-1:1:vpc/vpc-1"), Allowed},
		{"wildcards of an ARN end at a colon", `"ArnLike": {"ec2:Vpc": "arn:*:vpc/vpc-1:::"}`, tagged(VPC, "arn:aws:ec2:lab-1:1:vpc/vpc-1"), NotAllowed},
		{"a variable", `"ArnEquals": {"ec2:SourceInstanceARN": "arn:*:ec2:*:*:instance/${ec2:InstanceId}"}`, fromInstance("i-1", "i-1"), Allowed},
		{"a variable of another value", `"ArnEquals": {"ec2:SourceInstanceARN": "arn:*:ec2:*:*:instance/${ec2:InstanceID}"}`, fromInstance("i-1", "i-2"), NotAllowed},
		{"a variable without a value", `"ArnEquals": {"ec2:SourceInstanceARN": "arn:*:ec2:*:*:instance/${ec2:InstanceID}"}`, fromInstance("i-1"), NotAllowed},
		{"a variable without a value, negated", `"ArnNotEquals": {"ec2:SourceInstanceARN": "arn:*:ec2:*:*:instance/${ec2:InstanceID}"}`, fromInstance("i-1"), NotAllowed},
		{"a variable with a wildcard", `"ArnEquals": {"ec2:SourceInstanceARN": "arn:*:ec2:*:*:instance/${ec2:InstanceID}"}`, fromInstance("i-1", "*"), NotAllowed},
		{"boolean", `"Bool": {"aws:RequestTag/x": "true"}`, tagged(RequestTag("x"), "True"), Allowed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			doc := `{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "ec2:Delete*", "Resource": "` + eniARN + `", "Condition": {` + tt.statement + `}}}`
			p, err := Parse([]byte(doc))
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Decide(Request{"ec2:DeleteNetworkInterface", eniARN, tt.keys}); got != tt.want {
				t.Errorf("Decide() = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestActionsAndResources(t *testing.T) {
	for _, tt := range []struct {
		effects, action, resource string // statements: "Allow action resource; Deny ..."
		want                      Decision
	}{
		{"Allow ec2:AttachNetworkInterface *", "ec2:AttachNetworkInterface", eniARN, Allowed},
		{"Allow EC2:attachnetworkinterface *", "ec2:AttachNetworkInterface", eniARN, Allowed},
		{"Allow ec2:Attach* *", "ec2:AttachNetworkInterface", eniARN, Allowed},
		{"Allow * *", "ec2:AttachNetworkInterface", "*", Allowed},
		{"Allow s3:* *", "ec2:AttachNetworkInterface", eniARN, NotAllowed},
		{"Allow ec2:Detach* *", "ec2:AttachNetworkInterface", eniARN, NotAllowed},
		{"Allow ec2:* arn:*:ec2:*:*:network-interface/*", "ec2:AttachNetworkInterface", eniARN, Allowed},
		{"Allow ec2:* arn:*:ec2:*:*:instance/*", "ec2:AttachNetworkInterface", eniARN, NotAllowed},
		{"Allow ec2:* arn:aws:ec2:lab-2:*:network-interface/*", "ec2:AttachNetworkInterface", eniARN, NotAllowed},
		{"Allow ec2:* arn:*:ec2:*:*:network-interface/*", "ec2:DescribeSubnets", "*", NotAllowed},
		{"Allow ec2:* *; Deny ec2:Attach* *", "ec2:AttachNetworkInterface", eniARN, Denied},
		{"Deny ec2:Attach* *; Allow ec2:* *", "ec2:AttachNetworkInterface", eniARN, Denied},
		{"Allow ec2:* *; Deny ec2:Attach* arn:*:ec2:*:*:instance/*", "ec2:AttachNetworkInterface", eniARN, Allowed},
	} {
		var statements []string
		for s := range strings.SplitSeq(tt.effects, "; ") {
			f := strings.Fields(s)
			statements = append(statements, `{"Effect": "`+f[0]+`", "Action": ["`+f[1]+`"], "Resource": ["`+f[2]+`"]}`)
		}
		p, err := Parse([]byte(`{"Version": "2012-10-17", "Statement": [` + strings.Join(statements, ",") + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Decide(Request{Action: tt.action, Resource: tt.resource}); got != tt.want {
			t.Errorf("%s: Decide(%s on %s) = %v, want %v", tt.effects, tt.action, tt.resource, got, tt.want)
		}
	}
	if got := (Policy{}).Decide(Request{Action: "ec2:DescribeVpcs", Resource: "*"}); got != NotAllowed {
		t.Errorf("empty policy: Decide() = %v, want %v", got, NotAllowed)
	}
	joined := Join(Allow("ec2:Describe*"), Allow("ec2:CreateTags"))
	if joined.Decide(Request{Action: "ec2:CreateTags", Resource: eniARN}) != Allowed || Allow().Decide(Request{Action: "ec2:CreateTags", Resource: eniARN}) != NotAllowed {
		t.Error("joined policy does not allow both actions, or an empty Allow allows one")
	}
}

// Unsupported elements are reported by name, not ignored.
func TestUnsupportedPolicies(t *testing.T) {
	statement := func(s string) string { return `{"Version": "2012-10-17", "Statement": [` + s + `]}` }
	condition := func(s string) string {
		return statement(`{"Effect": "Allow", "Action": "ec2:*", "Resource": "*", "Condition": {` + s + `}}`)
	}
	for doc, says := range map[string]string{
		`[]`: "expected an object",
		`{"Version": "2008-10-17", "Statement": []}`:                                                     "Version",
		`{"Statement": []}`:                                                                              "Version: missing",
		`{"Version": "2012-10-17", "Statements": []}`:                                                    "Statements: unsupported",
		statement(`{"Effect": "Permit"}`):                                                                "Statement[0].Effect",
		statement(`{"Effect": "Allow", "NotAction": "ec2:*"}`):                                           "Statement[0].NotAction: unsupported",
		statement(`{"Effect": "Allow", "Resource": "*"}`):                                                "Statement[0].Action: missing",
		statement(`{"Effect": "Allow", "Action": "Describe*"}`):                                          "Statement[0].Action",
		statement(`{"Effect": "Allow", "Action": "ec2:*"}`):                                              "Statement[0].Resource: missing",
		statement(`{"Effect": "Allow", "Action": "ec2:*", "Resource": "eni-1"}`):                         "Statement[0].Resource",
		statement(`{"Sid": "a b", "Effect": "Allow", "Action": "ec2:*", "Resource": "*"}`):               "Statement[0].Sid",
		statement(`{"Effect": "Allow", "Action": "ec2:*", "Resource": "arn:aws:ec2:*:*:${aws:userid}"}`): "policy variables",
		condition(`"StringEquals": {"ec2:Vpc": "${aws:userid}"}`):                                        "${aws:userid}, expected a supported condition key",
		condition(`"StringEquals": {"ec2:Vpc": "${aws:TagKeys}"}`):                                       "with one value",
		condition(`"StringSame": {"ec2:Vpc": "x"}`):                                                      "Statement[0].Condition.StringSame: unsupported",
		condition(`"ForSome:StringEquals": {"ec2:Vpc": "x"}`):                                            "ForAllValues or ForAnyValue",
		condition(`"NullIfExists": {"ec2:Vpc": "true"}`):                                                 "NullIfExists",
		condition(`"Null": {"ec2:Vpc": "maybe"}`):                                                        "expected true or false",
		condition(`"StringEquals": {"aws:SourceVpc": "x"}`):                                              "StringEquals.aws:SourceVpc: unsupported condition key",
		condition(`"StringEquals": {"aws:ResourceTag/": "x"}`):                                           "aws:ResourceTag/: unsupported condition key",
		condition(`"StringEquals": {"aws:TagKeys": "x"}`):                                                "many values",
		condition(`"StringEquals": {"ec2:Vpc": 7}`):                                                      "StringEquals.ec2:Vpc: 7, expected text",
	} {
		if _, err := Parse([]byte(doc)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Parse(%s) = %v, want error containing %q", doc, err, says)
		}
	}
}
