// Package pace makes a cloud.API of what sends single calls: the client of EC2, or
// a cloud in memory. It decides as which calls, such as the pages of a listing, a
// method is made (Cloud), when each may be sent, and how often (Set).
//
// # Limits
//
// EC2 refuses calls for their rate, and tells neither the rate nor how full its
// buckets are. By its documentation each action has a bucket of its own (EC2
// Developer Guide, "Request throttling for the Amazon EC2 API"); an account, or
// something on the way, may have one for all. A Set therefore is in one of two
// states:
//
//   - apart: each action has a pacer that learns from that action's refusals;
//   - shared: one pacer for all actions learns from all refusals, and of the
//     actions' own limits only the configured ceilings hold.
//
// How a pacer learns is in pacer.go. Which state is right shows between two
// refusals. If all actions share a bucket, it was empty at each of them,
// whatever the actions were; so in between as much passed as flowed into it, at
// the same rate every time. A refusal right after one of another action speaks
// for a shared bucket; one that comes when such a bucket had something in it, or
// more calls passing than its rate allows, speaks against it. See shared.go.
//
// # Peers
//
// Refusals do not tell whose calls emptied the bucket. Many processes with
// limiters like these (Options.Peers) take each other for clients that never
// back off, and such a client for peers. What does not tell them apart:
//
//   - To yield to all refusals. Beside a client that makes 8 calls a second on 5/s
//     four peers took 2.1 times as long as with a share in proportion, and one alone
//     5 times; 5 % refused at random made them 4.8 times as slow, 10 % 7 times.
//   - To bear refusals that go on after an own cut, as a process without peers
//     does. Four peers then bear each other's: 44 to 48 % of calls are refused. A cut of
//     one of N changes little; that it changes so little is the same beside N-1 peers
//     and beside a client that sends as much.
//   - A rate that is a function of the share refused, however flat. Twice the peers
//     are to send half each, so that the share refused would have to say how many they are.
//   - A least rate while calls wait. Right for four nodes, it is a flood from a hundred.
//
// What tells them apart is to yield together. While calls are refused, all peers
// send a quarter of their calls for 5 seconds of every 12 of the clock. If
// only peers draw on the bucket, nothing is refused then; what is, is refused
// whatever they do. That share, with what a client that does not yield refuses
// more of when more is sent, is borne; and because more may show, a rate is
// cut once between two such periods. See listen.go.
//
// What it costs: peers that are alone have up to 5 % refused instead of 2.5 %, in the first two
// minutes 17 instead of 9 % (four on 5/s), and their shares differ more, up to four
// times. After a client that did not yield is gone, a quarter of the calls is refused for
// a minute or two. Peers that send less than a call in a quiet period, as sixteen on 5/s, hear
// too little: they have 28 % refused, before 44 %.
//
// # Order
//
// Calls that wait go by cloud.Priority, those of equal priority in the order in
// which they came, and a call that was refused keeps its place. So that nothing
// waits for ever, one turn in ten of an action goes to its oldest call once
// that has waited for half a minute; and in the state shared, one in ten goes to
// the action that was served the longest ago, so that a listing gets on beside
// a thousand creations.
//
// A call that begins something, the creation of an ENI with a priority below
// cloud.Begun, waits as long as any call of priority Begun has to, for whatever
// action: what was begun is finished first. Nothing else is held back by that,
// and nothing is lost by it either, since what waits is what limits the whole.
package pace
