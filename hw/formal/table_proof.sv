// The table of entries under any sequence of requests: an entry is never free and in use at once, the count
// of what waits is right, and a token finds the record that was parked under it, or none.
`default_nettype none

module table_proof (
    input wire logic        clk,
    input wire logic        clear, ready, take, stored, stored_good, claim_it, release_one, leave, put_tag,
    input wire logic [7:0]  take_record, put_tag_low,
    input wire logic [15:0] take_sum,
    input wire logic [63:0] look_token, probe_token,
    input wire logic [15:0] ttl,
    input wire logic [1:0]  maker_entry
);
    // With two entries the index comes round within few cycles; with three its two bits can name one that is
    // not there.
    parameter int ENTRIES = 3;
    localparam int ENTRY_W = $clog2(ENTRIES);

    logic rst = 1'b1;
    always_ff @(posedge clk) rst <= 1'b0;

    logic        take_granted, expired, probe_ours, look_ours, look_waits, look_complete, maker_made, leaving = 1'b0;
    logic [ENTRY_W-1:0] take_entry, look_entry, leaving_entry, writing;
    logic [63:0] take_token;
    logic [7:0]  look_record, maker_generation;
    logic [15:0] look_sum;
    logic [3:0]  look_bytes;
    logic [2:0]  look_refusal;
    logic [16:0] waiting;
    logic        claim, release_it, dies;
    logic [4*ENTRIES-1:0] states;

    // The egress claims what it may, one at a time, as `splice_egress` does; a tag is put where one is
    // missing.
    assign claim      = claim_it && look_waits && look_complete && !leaving && !rst;
    assign release_it = release_one && look_waits && look_complete && !claim && !rst;
    always_ff @(posedge clk) begin
        if (claim) {leaving, leaving_entry} <= {1'b1, look_entry};
        else if (leave && leaving) leaving <= 1'b0;
    end

    metadata_table #(.ENTRIES(ENTRIES), .TAG_W(40), .RECORD_W(8), .LENGTH_W(4)) dut (
        .clk(clk), .rst(rst), .cold_rst(rst), .clear(clear), .ready(ready), .ttl(ttl), .take(take), .take_record(take_record),
        .take_sum(take_sum),
        .take_granted(take_granted), .take_entry(take_entry), .take_token(take_token), .expired(expired), .stored(stored),
        .stored_good(stored_good), .stored_bytes(4'd1), .probe_token(probe_token), .probe_ours(probe_ours), .look_token(look_token),
        .look_ours(look_ours), .look_waits(look_waits), .look_complete(look_complete), .look_entry(look_entry),
        .look_record(look_record), .look_sum(look_sum), .look_bytes(look_bytes), .look_refusal(look_refusal), .claim(claim), .release_it(release_it),
        .leave(leave && leaving), .leave_entry(leaving_entry), .maker_entry(maker_entry[ENTRY_W-1:0]), .maker_generation(maker_generation),
        .maker_made(maker_made), .put_first(1'b0), .put_tag(put_tag && !maker_made), .put_generation(8'd0),
        .put_tag_bits({32'd0, put_tag_low}), .waiting(waiting),
        .formal_states(states), .formal_dies(dies), .formal_writing(writing)
    );

    // One entry, any of them: who is in it?
    (* anyconst *) logic [ENTRY_W-1:0] watched;
    logic        held = 1'b0, taken = 1'b0, given = 1'b0;
    logic [63:0] token;
    logic [7:0]  record;
    logic [15:0] sum;
    always_ff @(posedge clk) begin
        // The checksum comes a cycle behind the packet that it belongs to.
        taken <= take && take_granted && take_entry == watched;
        if (taken) sum <= take_sum;
        if (take && take_granted && take_entry == watched) begin
            {held, token, record, given} <= {1'b1, take_token, take_record, 1'b1};
        end else if (clear || ((claim || release_it) && look_entry == watched)
                     || (expired && take_entry == watched) || (dies && writing == watched)) begin
            held <= 1'b0;
        end
        if (rst) held <= 1'b0;
    end

    logic [2:0]  state [ENTRIES];
    logic [16:0] in_wait;
    integer      n;
    always_comb begin
        in_wait = 17'd0;
        for (n = 0; n < ENTRIES; n = n + 1) begin
            state[n] = states[4*n +: 3];
            in_wait  = in_wait + 17'(state[n] == 3'd1);
        end
    end

    // The count is a cycle behind.
    logic [16:0] counted = 17'd0;
    always_ff @(posedge clk) counted <= clear || rst ? 17'd0 : in_wait;

    // These have to happen within the cycles of the proof, or nothing was proved of them: the time of an
    // entry ends, its payload is damaged, another packet gets it, and it is claimed as another packet asks
    // for it.
    logic       ended = 1'b0, collided = 1'b0;
    logic [2:0] how = 3'd0;
    (* keep *) logic reached_expiry, reached_damage, reached_second, reached_collision;
    always_ff @(posedge clk) begin
        if (expired && take_entry == watched && !clear) {ended, how} <= {1'b1, 3'd5};
        if (dies && writing == watched && !clear) {ended, how} <= {1'b1, 3'd7};
        if ((claim || release_it) && look_entry == watched) {ended, how} <= {1'b1, 3'd3};
        if (take && claim && take_entry == watched && look_entry == watched) collided <= 1'b1;
        if (rst) {ended, collided} <= 2'b00;
    end
    assign reached_expiry    = ended && how == 3'd5 && look_token == token && !look_waits;
    assign reached_damage    = ended && how == 3'd7 && look_token == token && !look_waits;
    assign reached_second    = ended && how == 3'd3 && held && look_waits && look_token == token;
    assign reached_collision = collided && ended && how == 3'd3 && !held;

    always_comb begin
        assume (32'(watched) < ENTRIES && 32'(maker_entry) < ENTRIES);
        if (!rst) begin
            // Valid exactly while it waits; granted only if it neither waits nor leaves.
            assert (held == (state[watched] == 3'd1));
            if (take && take_granted && take_entry == watched) assert (!held && !(leaving && leaving_entry == watched));
            // A token's generation is the next one, whatever its tag.
            if (take && take_granted && take_entry == watched && given) assert (take_token[47:40] == token[47:40] + 8'd1);
            assert (waiting == counted);
            if (leaving) assert (state[leaving_entry] == 3'd2);
            // A payload goes to its own token, with its own record.
            if (look_waits && look_entry == watched) assert (held && look_token == token && look_record == record);
            if (look_waits && look_complete && look_entry == watched) assert (look_sum == sum);
            if (held && look_token == token) assert (look_waits);
        end
    end
endmodule
