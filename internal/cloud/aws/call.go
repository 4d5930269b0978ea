package aws

import (
	"context"
	"errors"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"

	"github.com/berthnet/berth/internal/cloud/pace"
)

// invoke sends one EC2 call. Its error is a *pace.Reply; credentials that EC2
// calls expired are its Cure.
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

// page reads a page of a listing: each element by one, and the token of the next page.
func page[In, Out any](op pace.Call, list []In, next *string, one func(*reading, *In) Out) (out []Out, token string, err error) {
	var r reading
	for i := range list {
		out = append(out, one(&r, &list[i]))
	}
	if r.err != nil {
		return nil, "", useless(op, r.err)
	}
	return out, sdk.ToString(next), nil
}

// useless is the error of a call that had its effect, for what is wrong with its
// answer.
func useless(op pace.Call, err error) error {
	return &pace.Reply{Err: fail(op.Action, err), Answered: true}
}

// localCode is the code for an Observer of an error that has none of EC2's.
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
