// The table of entries under any sequence of requests: an entry is never free and in use at once, the count
// of what waits is right, and a token finds the record that was parked under it, or none.
`default_nettype none

module table_proof (
    input wire logic        clk,
    input wire logic        clear, ready, take, stored, stored_good, claim_it, release_one, leave, put_tag,
    input wire logic [7:0]  take_record, put_tag_low,
    input wire logic [15:0] take_sum,
    input wire logic [63:0] look_token, probe_token,
    input wire logic [15:0] ttl
);
    logic rst = 1'b1;
    always_ff @(posedge clk) rst <= 1'b0;

    logic        take_granted, expired, probe_ours, look_ours, look_waits, look_complete, maker_made, leaving = 1'b0;
    logic [1:0]  take_entry, look_entry, leaving_entry, maker_entry = 2'd0;
    logic [63:0] take_token;
    logic [7:0]  look_record, maker_generation;
    logic [15:0] look_sum;
    logic [3:0]  look_bytes;
    logic [2:0]  look_refusal;
    logic [16:0] waiting;
    logic        claim, release_it, dies;
    logic [11:0] states;
    logic [1:0]  writing;

    // The egress claims what it may, one at a time, as `splice_egress` does; a tag is put where one is
    // missing.
    assign claim      = claim_it && look_waits && look_complete && !leaving && !rst;
    assign release_it = release_one && look_waits && look_complete && !claim && !rst;
    always_ff @(posedge clk) begin
        maker_entry <= maker_entry == 2'd2 ? 2'd0 : maker_entry + 2'd1;
        if (claim) {leaving, leaving_entry} <= {1'b1, look_entry};
        else if (leave && leaving) leaving <= 1'b0;
    end

    metadata_table #(.ENTRIES(3), .TAG_W(40), .RECORD_W(8), .LENGTH_W(4)) dut (
        .clk(clk), .rst(rst), .cold_rst(rst), .clear(clear), .ready(ready), .ttl(ttl), .take(take), .take_record(take_record),
        .take_sum(take_sum),
        .take_granted(take_granted), .take_entry(take_entry), .take_token(take_token), .expired(expired), .stored(stored),
        .stored_good(stored_good), .stored_bytes(4'd1), .probe_token(probe_token), .probe_ours(probe_ours), .look_token(look_token),
        .look_ours(look_ours), .look_waits(look_waits), .look_complete(look_complete), .look_entry(look_entry),
        .look_record(look_record), .look_sum(look_sum), .look_bytes(look_bytes), .look_refusal(look_refusal), .claim(claim), .release_it(release_it),
        .leave(leave && leaving), .leave_entry(leaving_entry), .maker_entry(maker_entry), .maker_generation(maker_generation),
        .maker_made(maker_made), .put_first(1'b0), .put_tag(put_tag && !maker_made), .put_generation(8'd0),
        .put_tag_bits({32'd0, put_tag_low}), .waiting(waiting),
        .formal_states(states), .formal_dies(dies), .formal_writing(writing)
    );

    // One entry, any of them: who is in it?
    (* anyconst *) logic [1:0] watched;
    logic        held = 1'b0, taken = 1'b0;
    logic [63:0] token;
    logic [7:0]  record;
    logic [15:0] sum;
    always_ff @(posedge clk) begin
        // The checksum comes a cycle behind the packet that it belongs to.
        taken <= take && take_granted && take_entry == watched;
        if (taken) sum <= take_sum;
        if (take && take_granted && take_entry == watched) begin
            {held, token, record} <= {1'b1, take_token, take_record};
        end else if (clear || ((claim || release_it) && look_entry == watched)
                     || (expired && take_entry == watched) || (dies && writing == watched)) begin
            held <= 1'b0;
        end
        if (rst) held <= 1'b0;
    end

    logic [2:0] state [3];
    assign {state[2], state[1], state[0]} = {states[10:8], states[6:4], states[2:0]};

    // The count is a cycle behind.
    logic [16:0] counted = 17'd0;
    always_ff @(posedge clk) begin
        counted <= clear || rst ? 17'd0 : 17'(state[0] == 3'd1) + 17'(state[1] == 3'd1) + 17'(state[2] == 3'd1);
    end

    always_comb begin
        assume (watched < 2'd3);
        if (!rst) begin
            // Valid exactly while it waits; granted only if it neither waits nor leaves.
            assert (held == (state[watched] == 3'd1));
            if (take && take_granted && take_entry == watched) assert (!held && !(leaving && leaving_entry == watched));
            assert (waiting == counted);
            if (leaving) assert (state[leaving_entry] == 3'd2);
            // A payload goes to its own token, with its own record.
            if (look_waits && look_entry == watched) assert (held && look_token == token && look_record == record);
            if (look_waits && look_complete && look_entry == watched) assert (look_sum == sum);
            if (held && look_token == token) assert (look_waits);
        end
    end
endmodule
