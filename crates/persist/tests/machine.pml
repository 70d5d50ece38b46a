/*
 * The responder of paper 004 once more, for spin: written from the paper and not from the Rust checker, with another
 * way of telling the state (arrays of places that hold or do not hold a value, no levels) and no search of ours.
 * tests/spin.rs writes the two programs into REQUESTER and RESPONDER, from a recipe, in the steps that are defined
 * below, and the configuration as 0 or 1 into MHP, WSP (DMP if neither), DDIO, PM, IWARP and RELAXED: packets overtake each
 * other on the wire and writes in the RNIC, but what is executed waits for its turn all the same.
 *
 * With TWICE the recipe of one update is carried out twice, with one receive buffer: word 0 at its place and 3 in the buffer are
 * the first one's, 2 and 5 the second one's, and 5 comes to lie where 3 was.
 *
 * Two words are written: 0 and 1 are the halves of update a, 2 is update b (one word); they lie at PLACE. Words 3..5 are
 * the halves of a and b as a message brings them, 6 and 7 say "look at a", "look at b".
 */
#define WORDS 8

/* Where a word is. A word may be in several places: what is copied down leaves its place above. */
bool sent[WORDS], rnic[WORDS], visible[WORDS], cached[WORDS], queued[WORDS];
/* The words of a place that the CPU stored: in its store buffer, in its cache, in the memory controller. */
bool stored[3], cpu_cached[3];
bool at_home[3];            /* words 0..2 are in the memory controller: by whichever way */
byte order[WORDS];          /* 1 + the number of the work request that brings a word; 0: none does */
byte posted_number;         /* work requests posted so far */
bool nonposted[10];         /* the work request of that number is a FLUSH or an ATOMIC WRITE */
bool executed[10];
bool persistent[10];        /* it is a FLUSH to persistence */
bool atomic_b;              /* b travels as an ATOMIC WRITE */
byte acks, acks_taken;
byte reposts;               /* receive buffers given back */
bool believed_first;        /* with TWICE: the first one is believed durable */
bool believed, done_rq, done_rsp;

#define NEVER(w)        (order[w] == 0)
#define ARRIVED(w)      (NEVER(w) || rnic[w])
#define SEEN(w)         (NEVER(w) || visible[w])
/* The second message lies where the first one was: what of that had gone further down stays there, and no more will. */
#define OVER(w)         (TWICE && (w) == 3 && visible[5])
/* The IIO holds what is visible and neither in the cache nor in the memory controller. */
#define LEFT_IIO(w)     (NEVER(w) || (DDIO && cached[w]) || queued[w] || OVER(w))
#define EARLIER(w, n)   (order[w] != 0 && order[w] < (n))
/* Words of work requests before number n. */
#define ALL_BEFORE(n, what) \
    ((!EARLIER(0, n) || what(0)) && (!EARLIER(1, n) || what(1)) && (!EARLIER(2, n) || what(2)) && \
     (!EARLIER(3, n) || what(3)) && (!EARLIER(4, n) || what(4)) && (!EARLIER(5, n) || what(5)) && \
     (!EARLIER(6, n) || what(6)) && (!EARLIER(7, n) || what(7)))
#define POSTED_SEEN(w)  (SEEN(w) || (w == 2 && atomic_b))
/* Words of messages in DRAM stop where they are visible. */
#define FLUSHED(w)      (SEEN(w) && (LEFT_IIO(w) || ((w) >= 3 && !PM)))
/* A FLUSH to persistence looks further: in DMP the cache is not enough. */
#define PERSISTED(w)    (FLUSHED(w) && (NEVER(w) || MHP || WSP || queued[w] || OVER(w) || ((w) >= 3 && !PM)))
#define EXECUTED_BEFORE(n) \
    ((1 >= (n) || !nonposted[1] || executed[1]) && (2 >= (n) || !nonposted[2] || executed[2]) && \
     (3 >= (n) || !nonposted[3] || executed[3]) && (4 >= (n) || !nonposted[4] || executed[4]) && \
     (5 >= (n) || !nonposted[5] || executed[5]) && (6 >= (n) || !nonposted[6] || executed[6]))

/* The requester's steps. */
inline post(w)        { sent[w] = true; order[w] = posted_number }
inline Write_a()      { atomic { posted_number++; post(0); post(1) } }
inline Write_b()      { atomic { posted_number++; post(2) } }
inline AtomicWrite_b(){ atomic { posted_number++; post(2); atomic_b = true; nonposted[posted_number] = true } }
inline Send_a()       { atomic { posted_number++; post(3); post(4) } }
inline Send_ab()      { atomic { posted_number++; post(3); post(4); post(5) } }
inline Send_at_a()    { atomic { posted_number++; post(6) } }
inline Send_at_b()    { atomic { posted_number++; post(7) } }
/* A WRITE with immediate is a WRITE whose arrival the responder is told of. */
inline WriteImm_a()   { Write_a() }
inline WriteImm_b()   { Write_b() }
/* It does not leave before everything that has a response has one. */
inline FencedWrite_b(){ atomic { EXECUTED_BEFORE(posted_number + 1); posted_number++; post(2) } }
inline Send_first()   { atomic { posted_number++; post(3) } }
inline Send_second()  { atomic { posted_number++; post(5) } }
inline Flush()        { atomic { posted_number++; nonposted[posted_number] = true } }
inline FlushP()       { atomic { posted_number++; nonposted[posted_number] = true; persistent[posted_number] = true } }
inline Comp() {
    /* In order: everything up to the last one. What was posted has arrived, the others were executed. */
    (EXECUTED_BEFORE(posted_number + 1) && (IWARP || ALL_BEFORE(posted_number + 1, ARRIVED)))
}
inline Receive_ack()  { atomic { (acks > acks_taken); acks_taken++ } }

/* The responder's steps. A copy is one store after the other; a flush takes what is visible there down. */
inline Receive_a()    { (visible[3] && visible[4]) }
inline Receive_ab()   { (visible[3] && visible[4] && visible[5]) }
inline Receive_at_a() { (visible[6] && ALL_BEFORE(order[6], SEEN)) }
inline Receive_at_b() { (visible[7] && ALL_BEFORE(order[7], SEEN)) }
inline Receive_imm_a(){ (visible[0] && visible[1] && ALL_BEFORE(order[0], SEEN)) }
inline Receive_imm_b(){ (visible[2] && ALL_BEFORE(order[2], SEEN)) }
inline Receive_first()  { (visible[3]) }
inline Receive_second() { (visible[5]) }
inline copy_first()     { atomic { assert(visible[3] && !visible[5]); stored[0] = true } }
inline copy_second()    { atomic { assert(visible[5]); stored[2] = true } }
inline flush_at_first() { flush_word(0) }
inline flush_at_second(){ flush_word(2) }
inline flush_buffer_first()  { (!visible[3] || queued[3] || OVER(3)) }
inline flush_buffer_second() { (!visible[5] || queued[5]) }
inline copy_a()       { assert(visible[3] && visible[4]); stored[0] = true; stored[1] = true }
inline copy_b()       { assert(visible[5]); stored[2] = true }
inline flush_word(w)  { atomic { ((!visible[w] && !stored[w] && !cpu_cached[w]) || at_home[w]) } }
inline flush_at_a()   { flush_word(0); flush_word(1) }
inline flush_at_b()   { flush_word(2) }
inline flush_buffer() { (queued[3] && queued[4] && (NEVER(5) || queued[5])) }
/* What goes to the RNIC goes behind the CPU's stores. */
#define STORES_LEFT   (!(stored[0] && !cpu_cached[0]) && !(stored[1] && !cpu_cached[1]) && !(stored[2] && !cpu_cached[2]))
inline Ack()          { atomic { STORES_LEFT; acks++ } }
inline Repost()       { atomic { STORES_LEFT; reposts++ } }

active proctype requester() { REQUESTER; believed = true; done_rq = true }
active proctype responder() { RESPONDER; done_rsp = true }

/* Everything that moves by itself, one word at a time. */
inline step_down(w) {
    if
    :: atomic { sent[w] && !rnic[w] && (!TWICE || w != 5 || reposts > 0) && (RELAXED ||
           (ALL_BEFORE(order[w], ARRIVED) && (w == 0 || order[w] != order[w - 1] || rnic[w - 1]))) -> rnic[w] = true }
    :: atomic { rnic[w] && !visible[w] && (RELAXED || ALL_BEFORE(order[w], POSTED_SEEN)) &&
           (!(w == 2 && atomic_b) || (executed[order[w]] && ALL_BEFORE(order[w], SEEN)))
           -> visible[w] = true }
    :: atomic { DDIO && visible[w] && !cached[w] && !queued[w] && !OVER(w) && (w < 3 || PM) -> cached[w] = true }
    :: atomic { visible[w] && !queued[w] && !OVER(w) && (w < 3 || PM) -> queued[w] = true;
           if :: w < 3 -> at_home[w] = true :: else fi }
    fi
}
active proctype data() {
    byte w;
    end: do
    :: step_down(0) :: step_down(1) :: step_down(2) :: step_down(3)
    :: step_down(4) :: step_down(5) :: step_down(6) :: step_down(7)
    od
}
inline drain(w, before) {
    if
    :: atomic { stored[w] && !cpu_cached[w] && (before) -> cpu_cached[w] = true }
    :: atomic { cpu_cached[w] && !at_home[w] -> at_home[w] = true }
    fi
}
active proctype store_buffer() {
    end: do
    :: drain(0, true)
    :: drain(1, !stored[0] || cpu_cached[0])
    :: drain(2, (!stored[0] || cpu_cached[0]) && (!stored[1] || cpu_cached[1]))
    od
}
inline execute(n) {
    atomic { nonposted[n] && n <= posted_number && !executed[n] && EXECUTED_BEFORE(n) &&
             ((atomic_b && order[2] == n && rnic[2]) || (!(atomic_b && order[2] == n) && !persistent[n] && ALL_BEFORE(n, FLUSHED)) ||
              (persistent[n] && ALL_BEFORE(n, PERSISTED)))
             -> executed[n] = true }
}
active proctype rnic_queue() {
    end: do
    :: execute(1) :: execute(2) :: execute(3) :: execute(4) :: execute(5) :: execute(6)
    od
}

/* What a crash leaves of word w of an update, and of word m of a message. */
#define KEPT_PLACE(w) \
    (at_home[w] || (MHP && (visible[w] || cpu_cached[w])) || (WSP && (rnic[w] || stored[w])))
#define KEPT_BUFFER(m)  (PM && (queued[m] || (MHP && visible[m]) || (WSP && rnic[m])))
#define WHOLE_MESSAGE   (REPLAY && sent[3] && KEPT_BUFFER(3) && KEPT_BUFFER(4) && (NEVER(5) || KEPT_BUFFER(5)))
#define A_RECOVERED     ((KEPT_PLACE(0) && KEPT_PLACE(1)) || WHOLE_MESSAGE)
#define B_RECOVERED     (KEPT_PLACE(2) || (WHOLE_MESSAGE && sent[5]))

/* With TWICE: one update of one word each, and one message in the buffer. */
#define FIRST_RECOVERED  (KEPT_PLACE(0) || (REPLAY && sent[3] && KEPT_BUFFER(3) && !(sent[5] && KEPT_BUFFER(5))))
#define SECOND_RECOVERED (KEPT_PLACE(2) || (REPLAY && sent[5] && KEPT_BUFFER(5)))

/* The crash: at any moment, and seen by nobody but this assertion. */
active proctype crash() {
    atomic {
        assert(TWICE || ((!believed || (A_RECOVERED && (!COMPOUND || B_RECOVERED))) && (!COMPOUND || !B_RECOVERED || A_RECOVERED)));
        assert(!TWICE || ((!believed_first || FIRST_RECOVERED) && (!believed || SECOND_RECOVERED)))
    }
}

/* Both sides come to their end: else they are an invalid end state, which spin reports. */
