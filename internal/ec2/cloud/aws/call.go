package aws

import (
	"context"
	"errors"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"

	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// invoke sends one EC2 call. Its error is a *pace.Reply, with new credentials as the Cure if EC2 says
// that they have expired.
func invoke[In, Out any](ctx context.Context, c *Client, what pace.Call,
	call func(context.Context, In, ...func(*ec2.Options)) (Out, error), in In,
) (Out, error) {
	out, err := call(ctx, in)
	if err == nil {
		return out, nil
	}
	r := &pace.Reply{Err: fail(what.Action, err), Code: localCode(err)}
	r.Unsent = r.Code == pace.CodeCredentials
	if expired[r.Err.Code] {
		r.Cure = func() {
			c.logger.Info("EC2 refused the credentials, fetching new ones", "op", what.Action, "code", r.Err.Code)
			c.creds.forget()
		}
	}
	return out, r
}

// ask sends one EC2 call and decodes its reply.
func ask[In, Out, T any](ctx context.Context, c *Client, what pace.Call,
	call func(context.Context, In, ...func(*ec2.Options)) (Out, error), in In, read func(*reading, Out) T,
) (out T, err error) {
	got, err := invoke(ctx, c, what, call, in)
	if err != nil {
		return out, err
	}
	var r reading
	value := read(&r, got)
	if r.err != nil {
		return out, useless(what, r.err)
	}
	return value, nil
}

// page requests one page of a listing and decodes its elements. Answered extracts the elements and the
// next page token from a reply.
func page[In, Out, Element, T any](ctx context.Context, c *Client, what pace.Call,
	call func(context.Context, In, ...func(*ec2.Options)) (Out, error), in In,
	answered func(Out) ([]Element, *string), one func(*reading, *Element) T,
) (list []T, next string, err error) {
	list, err = ask(ctx, c, what, call, in, func(r *reading, got Out) (list []T) {
		all, token := answered(got)
		for i := range all {
			list = append(list, one(r, &all[i]))
		}
		next = sdk.ToString(token)
		return list
	})
	return list, next, err
}

// useless is the error of a call that took effect but whose reply is invalid.
func useless(op pace.Call, err error) error {
	return &pace.Reply{Err: fail(op.Action, err), Answered: true}
}

// localCode is the code reported to the Observer for an error that did not come from EC2.
func localCode(err error) string {
	if _, ok := errors.AsType[*noCredentials](err); ok {
		return pace.CodeCredentials
	}
	_, bad := errors.AsType[*badAnswer](err)
	_, parse := errors.AsType[*smithy.DeserializationError](err)
	if bad || parse {
		return pace.CodeBadReply
	}
	return pace.CodeNoReply
}
