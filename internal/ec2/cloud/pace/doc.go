// Package pace turns a source of single calls, the EC2 client or an in-memory cloud, into a cloud.API. It
// decides which calls a method makes, such as the pages of a listing (Cloud), when each call may be sent, and
// how often (Set).
//
// # Limits
//
// EC2 throttles calls but reveals neither the rate nor the fill level of its buckets. According to its
// documentation each action has its own bucket (EC2 Developer Guide, "Request throttling for the Amazon EC2
// API"); an account, or a proxy on the path, may have one bucket for all actions. A Set is therefore in one of
// two states:
//
//   - apart: each action has a pacer that learns from that action's refusals;
//   - shared: one pacer for all actions learns from all refusals, and the only limits per action are the
//     configured ceilings.
//
// See pacer.go for how a pacer learns. The calls between two refusals show which state is right. If all actions
// share a bucket, it is empty at every refusal, regardless of the action; the calls that pass in between then use
// exactly what flows into it, at the same rate every time. A refusal right after one of another action is
// evidence for a shared bucket. A refusal when such a bucket should not be empty, or more passed calls than its
// rate allows, is evidence against. See shared.go.
//
// # Peers
//
// A refusal does not reveal whose calls emptied the bucket. Processes with such limiters (Options.Peers) may
// mistake each other for clients that never back off, and such a client for a peer. These methods fail to
// distinguish them:
//
//   - Yielding to every refusal. Next to a client that makes 8 calls a second on a bucket of 5/s, four peers took
//     2.1 times as long as with a proportional share, and a single one 5 times. With 5 % of calls refused at
//     random they took 4.8 times as long, with 10 % 7 times.
//   - Tolerating refusals that continue after a process has cut its rate, as a process without peers does. Four
//     peers then tolerate each other: 44 to 48 % of calls are refused. A cut by one of N processes changes
//     little, whether the others are N-1 peers or one client that sends as much.
//   - Making the rate a function of the share of refused calls, however flat. Twice as many peers have to send
//     half as much each, so that share would have to reveal the number of peers.
//   - A minimum rate while calls wait. A rate that suits four nodes is a flood from a hundred.
//
// Slowing down together does distinguish them. While calls are refused, all peers send at a quarter of their rate
// for 5 of every 12 seconds by the clock. If only peers draw on the bucket, no calls are refused in that time; the
// refusals that remain do not depend on the peers. Peers tolerate this share of refusals, and the increase that
// sending more causes next to a client that does not yield. As even more refusals may follow, the rate is cut at
// most once between two such periods. See listen.go.
//
// This has a cost. Without other clients, peers have up to 5 % of their calls refused instead of 2.5 %, and 17 %
// instead of 9 % in the first two minutes (four peers on 5/s), and their shares differ by a factor of up to four.
// After a client that did not yield stops, a quarter of the calls is refused for a minute or two. Peers that send
// less than one call per quiet period, such as sixteen on 5/s, observe too little: 28 % of their calls are refused,
// down from 44 % without quiet periods.
//
// # Order
//
// Waiting calls are served by cloud.Priority, those of equal priority in order of arrival; a refused call keeps its
// place. To prevent starvation, one turn in ten of an action goes to its oldest call once that has waited for half
// a minute. In the state shared, one turn in ten goes to the action served least recently, so that a listing
// progresses next to a thousand creations.
//
// A call that starts work on a node, that is, the creation of an ENI with a priority below cloud.Begun, waits as
// long as any call of priority Begun is waiting for any action: work in progress completes first. Other calls are
// not held back, and no throughput is lost, because the waiting calls are what limits the total.
package pace
