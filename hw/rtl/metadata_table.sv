// The table of entries: whose payload waits where, for how many more turns of the index, and what its packet
// needs to become whole again. Entries are given out in the order of an index (NFSlicer, III-C).
//
// Ports: `take` and `stored` of the ingress, `probe` of the ingress for tokens that come from the network,
// `look`, `claim`, `leave` of the egress, and those of the token maker. All look-ups answer in the same
// cycle.
`default_nettype none

module metadata_table #(
    parameter int ENTRIES   = 250,
    parameter int TAG_W     = 24,
    parameter int RECORD_W  = 80,
    parameter int LENGTH_W  = 12,
    parameter int GEN_W    = 48 - TAG_W,
    parameter int ENTRY_W  = (ENTRIES > 1) ? $clog2(ENTRIES) : 1
) (
    input  wire logic                clk,
    // `rst` ends what waits and what is under way, and keeps the generations; `cold_rst` is for power-on.
    input  wire logic                rst,
    input  wire logic                cold_rst,
    // Every payload that waits is given up: a reset of the table, or a new key.
    input  wire logic                clear,
    input  wire logic                ready,
    input  wire logic [15:0]         ttl,

    // A packet asks for the entry at the index. Not granted: it goes on whole.
    input  wire logic                take,
    input  wire logic [RECORD_W-1:0] take_record,
    // A cycle after `take`.
    input  wire logic [15:0]         take_sum,
    output wire logic                take_granted,
    output wire logic [ENTRY_W-1:0]  take_entry,
    output wire logic [63:0]         take_token,
    output wire logic                expired,

    // The payload of the entry that was taken last is there, or came damaged.
    input  wire logic                stored,
    input  wire logic                stored_good,
    input  wire logic [LENGTH_W-1:0] stored_bytes,

    // Is this a token that a packet has, or had last?
    input  wire logic [63:0]         probe_token,
    output wire logic                probe_ours,

    // The entry of a token.
    input  wire logic [63:0]         look_token,
    output wire logic                look_ours,
    output wire logic                look_waits,
    output wire logic                look_complete,
    output wire logic [ENTRY_W-1:0]  look_entry,
    output wire logic [RECORD_W-1:0] look_record,
    output wire logic [15:0]         look_sum,
    output wire logic [LENGTH_W-1:0] look_bytes,
    // Why it gets no payload: 0 forged, 1 stale, 2 late, 3 duplicate, 4 released.
    output wire logic [2:0]          look_refusal,

    // The payload of that entry leaves from now on; it is given up; it has left.
    input  wire logic                claim,
    input  wire logic                release_it,
    input  wire logic                leave,
    input  wire logic [ENTRY_W-1:0]  leave_entry,

    input  wire logic [ENTRY_W-1:0]  maker_entry,
    output wire logic [GEN_W-1:0]    maker_generation,
    output wire logic                maker_made,
    input  wire logic                put_first,
    input  wire logic                put_tag,
    input  wire logic [GEN_W-1:0]    put_generation,
    input  wire logic [TAG_W-1:0]    put_tag_bits,

    output wire logic [16:0]         waiting
`ifdef FORMAL
    // For the proof: all states, and the entry whose payload turns out damaged in this cycle.
    , output wire logic [4*ENTRIES-1:0] formal_states
    , output wire logic                 formal_dies
    , output wire logic [ENTRY_W-1:0]   formal_writing
`endif
);
    localparam logic [2:0] UNUSED = 3'd0, WAITING = 3'd1, LEAVING = 3'd2, SPLICED = 3'd3, RELEASED = 3'd4, EXPIRED = 3'd5,
                           RESET = 3'd6, DAMAGED = 3'd7;
    localparam logic [ENTRY_W-1:0] LAST = ENTRY_W'(ENTRIES - 1);

    // Four bits an entry, of which the highest is not used: an address needs no multiplication.
    logic [4*ENTRIES-1:0] state_reg;
    logic [ENTRIES-1:0]  complete_reg, made_reg;
    logic [15:0]         ttl_reg      [ENTRIES];
    logic [GEN_W-1:0]    generation_reg [ENTRIES];
    logic [TAG_W-1:0]    tag_reg      [ENTRIES];
    logic [TAG_W-1:0]    next_tag_reg [ENTRIES];
    logic [RECORD_W-1:0] record_reg   [ENTRIES];
    logic [15:0]         sum_reg      [ENTRIES];
    logic [LENGTH_W-1:0] bytes_reg    [ENTRIES];
    logic [ENTRY_W-1:0]  index_reg, writing_reg;
    logic                writing_live_reg, arrived_reg, departed_reg, expired_reg, died_reg;
    logic [16:0]         waiting_reg;

    // The way in.
    logic [2:0]       index_state;
    logic [GEN_W-1:0] index_generation;
    logic             index_busy, index_usable, passed_over;
    assign index_state      = state_reg[{index_reg, 2'b00} +: 3];
    assign index_busy       = index_state == WAITING || index_state == LEAVING;
    assign index_usable     = ready && made_reg[index_reg];
    assign index_generation = generation_reg[index_reg] + 1'b1;
    assign take_entry       = index_reg;
    assign take_token       = {16'(index_reg), index_generation, next_tag_reg[index_reg]};
    assign take_granted     = index_usable && !index_busy && !clear;
    assign passed_over      = take && index_usable && index_state == WAITING;
    assign expired          = passed_over && ttl_reg[index_reg] <= 16'd1
                              && !(claim && look_entry == index_reg) && !(release_it && look_entry == index_reg);

    logic [ENTRY_W-1:0] probe_entry;
    assign probe_entry = probe_token[48 +: ENTRY_W];
    assign probe_ours  = 17'(probe_token[63:48]) < 17'(ENTRIES) && state_reg[{probe_entry, 2'b00} +: 3] != UNUSED
                         && probe_token[47:0] == {generation_reg[probe_entry], tag_reg[probe_entry]};

    // The way out.
    logic             look_there, look_same;
    logic [2:0]       look_state;
    logic [GEN_W-1:0] look_generation, look_behind;
    assign look_entry      = look_token[48 +: ENTRY_W];
    assign look_there      = 17'(look_token[63:48]) < 17'(ENTRIES);
    assign look_state      = state_reg[{look_entry, 2'b00} +: 3];
    assign look_generation = generation_reg[look_entry];
    assign look_behind     = look_generation - look_token[47:TAG_W];
    assign look_same       = look_token[47:0] == {look_generation, tag_reg[look_entry]};
    assign look_ours       = look_there && look_same && look_state != UNUSED;
    assign look_waits      = look_ours && look_state == WAITING;
    assign look_complete   = complete_reg[look_entry];
    assign look_record     = record_reg[look_entry];
    assign look_sum        = sum_reg[look_entry];
    assign look_bytes      = bytes_reg[look_entry];
    assign look_refusal    = !look_there ? 3'd0
                           : look_behind != '0 ? (look_behind[GEN_W-1] ? 3'd0 : 3'd1)
                           : !look_ours ? 3'd0
                           : look_state == SPLICED || look_state == LEAVING ? 3'd3
                           : look_state == RELEASED ? 3'd4 : 3'd2;

    assign maker_generation = generation_reg[maker_entry];
    assign maker_made       = made_reg[maker_entry];
    assign waiting          = waiting_reg;

    logic arrives, departs, dies;
    assign arrives = take && take_granted;
    assign departs = claim || release_it;
    assign dies    = stored && writing_live_reg && !stored_good && state_reg[{writing_reg, 2'b00} +: 3] == WAITING
                     && !(departs && look_entry == writing_reg) && !(expired && index_reg == writing_reg);

`ifdef FORMAL
    assign formal_states  = state_reg;
    assign formal_dies    = dies;
    assign formal_writing = writing_reg;
`endif

    // Each entry by itself: what comes last wins. A function, so that a simulator goes over the entries once
    // a cycle, and not at every change of what it reads.
    function automatic logic [6*ENTRIES-1:0] stepped(
        input logic [4*ENTRIES-1:0] states, input logic [ENTRIES-1:0] complete, input logic [ENTRIES-1:0] made
    );
        integer               n;
        logic [2:0]           state;
        logic [4*ENTRIES-1:0] state_next;
        logic [ENTRIES-1:0]   complete_next, made_next;
        state_next    = states;
        complete_next = complete;
        made_next     = made;
        for (n = 0; n < ENTRIES; n = n + 1) begin
            state = states[4*n +: 3];
            if (expired && index_reg == ENTRY_W'(n)) state = EXPIRED;
            if (dies && writing_reg == ENTRY_W'(n)) state = DAMAGED;
            if (stored && writing_reg == ENTRY_W'(n)) complete_next[n] = writing_live_reg && stored_good;
            if (arrives && index_reg == ENTRY_W'(n)) begin
                state            = WAITING;
                complete_next[n] = 1'b0;
                made_next[n]     = 1'b0;
            end
            if (claim && look_entry == ENTRY_W'(n)) state = LEAVING;
            if (release_it && look_entry == ENTRY_W'(n)) state = RELEASED;
            if (leave && leave_entry == ENTRY_W'(n)) state = SPLICED;
            if (put_first && maker_entry == ENTRY_W'(n)) begin
                made_next[n] = 1'b0;
                if (state != LEAVING) state = UNUSED;
            end
            if (put_tag && maker_entry == ENTRY_W'(n)) made_next[n] = 1'b1;
            // The time of all that waits is over. A payload that is leaving leaves, unless all stops.
            if ((clear || rst) && state == WAITING) state = RESET;
            if (rst && state == LEAVING) state = RESET;
            if (cold_rst) begin
                state        = UNUSED;
                made_next[n] = 1'b0;
            end
            state_next[4*n +: 4] = {1'b0, state};
        end
        stepped = {state_next, complete_next, made_next};
    endfunction

    // Without any of these every entry stays as it is, which is proved here. Icarus, for which the walk over
    // the entries is most of the work of a cycle, leaves it out then; the circuit has no such condition.
`ifndef SYNTHESIS
    logic moves;
    assign moves = expired || stored || arrives || departs || leave || put_first || put_tag || clear || rst || cold_rst;
`ifdef FORMAL
    always_comb begin
        if (!moves) assert (stepped(state_reg, complete_reg, made_reg) == {state_reg, complete_reg, made_reg});
    end
`endif
`ifdef VERILATOR
    // For lint alone: the condition is for Icarus and for the proof.
    logic unused;
    assign unused = &{1'b0, moves};
`endif
`endif

    always_ff @(posedge clk) begin
`ifdef __ICARUS__
        if (moves)
`endif
        {state_reg, complete_reg, made_reg} <= stepped(state_reg, complete_reg, made_reg);
        waiting_reg <= waiting_reg + 17'(arrived_reg) - 17'(departed_reg) - 17'(expired_reg) - 17'(died_reg);
        // Counted a cycle later.
        {arrived_reg, departed_reg, expired_reg, died_reg} <= {arrives, departs, expired, dies};
        if (take && index_usable) index_reg <= index_reg == LAST ? '0 : index_reg + 1'b1;
        // Each of these arrays has one port that writes, so that a memory can be made of it. A generation is
        // drawn only while no packet can arrive.
        if (arrives || passed_over) ttl_reg[index_reg] <= arrives ? ttl : ttl_reg[index_reg] - 16'd1;
        if (arrives || put_first) generation_reg[put_first ? maker_entry : index_reg] <= put_first ? put_generation : index_generation;
        if (arrived_reg) sum_reg[writing_reg] <= take_sum;
        if (stored) begin
            bytes_reg[writing_reg] <= stored_bytes;
            writing_live_reg       <= 1'b0;
        end
        if (arrives) begin
            tag_reg[index_reg]    <= next_tag_reg[index_reg];
            record_reg[index_reg] <= take_record;
            writing_reg           <= index_reg;
            writing_live_reg      <= 1'b1;
        end
        if (put_tag) next_tag_reg[maker_entry] <= put_tag_bits;
        if (clear || rst) begin
            waiting_reg      <= '0;
            {arrived_reg, departed_reg, expired_reg, died_reg} <= '0;
            writing_live_reg <= 1'b0;
        end
        if (rst) index_reg <= '0;
    end
endmodule

`default_nettype wire
