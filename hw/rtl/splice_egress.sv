// From the functions to the network: a packet with a token gets its payload back (NFSlicer, III-C b, Fig. 16,
// lower half). Two cycles from a beat to the same beat at the output: the register of the input, and that of
// the output. The token of a packet is found in the cycle in which its last beat stands at the input, so that
// a sliced packet of more than two beats waits for each further one. No cycle is lost inside of a frame, and
// between frames one at most, where four beats had to be seen (at 256 bits; at 512 behind a spliced one).
//
// A packet goes on untouched, gets its payload, or is dropped with a cause before its first beat leaves. The
// one exception is a packet too long to be a sliced one that ends in a token all the same (a tunnel around a
// sliced packet): it leaves with `tuser`, which tells the MAC to spoil it.
`default_nettype none

module splice_egress #(
    parameter int DATA_W   = 256,
    parameter int ROWS     = 47,
    parameter int ENTRY_W  = 8,
    parameter int RECORD_W = 80,
    parameter int LENGTH_W = 12,
    parameter int BYTES   = DATA_W / 8,
    parameter int ROW_W   = $clog2(ROWS + 1)
) (
    input  wire logic                clk,
    input  wire logic                rst,

    input  wire logic                enable,
    input  wire logic [15:0]         mtu,
    // Cycles that a packet waits for the rest of its payload.
    input  wire logic [15:0]         patience,

    input  wire logic                s_axis_tvalid,
    output wire logic                s_axis_tready,
    input  wire logic [DATA_W-1:0]   s_axis_tdata,
    input  wire logic [BYTES-1:0]    s_axis_tkeep,
    input  wire logic                s_axis_tlast,
    input  wire logic                s_axis_tuser,

    output wire logic                m_axis_tvalid,
    input  wire logic                m_axis_tready,
    output wire logic [DATA_W-1:0]   m_axis_tdata,
    output wire logic [BYTES-1:0]    m_axis_tkeep,
    output wire logic                m_axis_tlast,
    output wire logic                m_axis_tuser,

    output wire logic [63:0]         look_token,
    input  wire logic                look_ours,
    input  wire logic                look_waits,
    input  wire logic                look_complete,
    input  wire logic [ENTRY_W-1:0]  look_entry,
    input  wire logic [RECORD_W-1:0] look_record,
    input  wire logic [15:0]         look_sum,
    input  wire logic [LENGTH_W-1:0] look_bytes,
    input  wire logic [2:0]          look_refusal,
    output wire logic                claim,
    output wire logic                release_it,
    output wire logic                leave,
    output wire logic [ENTRY_W-1:0]  leave_entry,

    output wire logic                row_ren,
    output wire logic [ENTRY_W-1:0]  row_entry,
    output wire logic [ROW_W-1:0]    row,
    input  wire logic [DATA_W-1:0]   row_data,

    // Spliced, untouched; dropped: forged, stale, late, duplicate, released, mangled, oversize, early, bad;
    // spoiled: hidden.
    output wire logic [11:0]         events
);
    localparam int BEAT_W = $clog2(BYTES);
    // Bytes in which a sliced packet ends.
    localparam logic [16:0] REACH = 17'd128;

    // At 256 bits the checksum of the transport header and all of the payload stand behind the first beat.
    localparam logic LATER = DATA_W == 256;

    function automatic logic [15:0] fold(input logic [31:0] sum);
        logic [16:0] once;
        once = {1'b0, sum[15:0]} + {1'b0, sum[31:16]};
        fold = once[15:0] + 16'(once[16]);
    endfunction

    // Up to three beats wait; the input is seen behind them. What Ethernet and IP say is found out as a beat
    // comes in, and kept with it: it is right if the beat begins a frame.
    localparam int BEAT = DATA_W + BYTES + 2;
    localparam int FACTS = 95;
    (* mem2reg *) logic [BEAT-1:0]  queue_reg [3];
    (* mem2reg *) logic [FACTS-1:0] facts_reg [3];
    logic [1:0]       count_reg;
    logic [BEAT-1:0]  in_beat;
    logic [FACTS-1:0] in_facts;
    logic             pop, push;
    assign in_beat       = {s_axis_tuser, s_axis_tlast, s_axis_tkeep, s_axis_tdata};
    assign s_axis_tready = count_reg != 2'd3;
    assign push          = s_axis_tvalid && s_axis_tready;

    logic        p_fine, p_six, p_known, p_tcp, fine, six, known_kind, tcp;
    logic [1:0]  p_tags, tags;
    logic [3:0]  p_ip_words, ip_words;
    logic [4:0]  p_place, place;
    logic [16:0] p_ip_end, p_tail_byte, first_tail;
    logic [15:0] p_left, p_first_word, p_length_word, left, first_word, length_word;
    logic        short_end, reaches_on;
    logic [7:0]  p_at, at;
    logic [4:0]  p_token_place, token_place;
    ip_parser network (
        .head(s_axis_tdata[255:0]), .fine(p_fine), .six(p_six), .tags(p_tags), .ip_words(p_ip_words), .place(p_place),
        .ip_end(p_ip_end), .left(p_left), .first_word(p_first_word), .length_word(p_length_word), .known(p_known), .tcp(p_tcp)
    );
    // A sliced packet has its token where its headers end, and nothing behind it: so the end of the packet
    // says where both are. A packet that ends behind `REACH` is none of ours; one that ends in the first beat
    // has no token in a later one.
    assign p_at          = 8'(p_ip_end - 17'd8);
    assign p_token_place = 5'((p_at - 8'd14) >> 2);
    assign p_tail_byte   = p_ip_end - 17'd1;
    assign in_facts = {p_ip_end <= REACH, p_ip_end > 17'(BYTES), p_at, p_token_place, p_tail_byte,
                       p_fine, p_six, p_tags, p_ip_words, p_place, p_left, p_first_word, p_length_word, p_known, p_tcp};
    assign {short_end, reaches_on, at, token_place, first_tail,
            fine, six, tags, ip_words, place, left, first_word, length_word, known_kind, tcp} = facts_reg[0];

    logic [1:0] after_pop;
    assign after_pop = count_reg - 2'(pop);
    always_ff @(posedge clk) begin
        if (pop) begin
            {queue_reg[0], facts_reg[0]} <= {queue_reg[1], facts_reg[1]};
            {queue_reg[1], facts_reg[1]} <= {queue_reg[2], facts_reg[2]};
        end
        if (push) {queue_reg[after_pop], facts_reg[after_pop]} <= {in_beat, in_facts};
        count_reg <= after_pop + 2'(push);
        if (rst) count_reg <= 2'd0;
    end

    // The four beats from the oldest on, as far as they are there and of the same frame.
    logic [BEAT-1:0] beat_at [4];
    logic [3:0]      seen, lasts, users, same;
    assign beat_at[0] = queue_reg[0];
    assign beat_at[1] = count_reg > 2'd1 ? queue_reg[1] : in_beat;
    assign beat_at[2] = count_reg > 2'd2 ? queue_reg[2] : in_beat;
    assign beat_at[3] = in_beat;
    assign seen = {
        count_reg == 2'd3 && s_axis_tvalid,
        count_reg > 2'd2 || (count_reg == 2'd2 && s_axis_tvalid),
        count_reg > 2'd1 || (count_reg == 2'd1 && s_axis_tvalid),
        count_reg != 2'd0
    };
    assign lasts = {beat_at[3][DATA_W+BYTES], beat_at[2][DATA_W+BYTES], beat_at[1][DATA_W+BYTES], beat_at[0][DATA_W+BYTES]};
    assign users = {beat_at[3][DATA_W+BYTES+1], beat_at[2][DATA_W+BYTES+1], beat_at[1][DATA_W+BYTES+1], beat_at[0][DATA_W+BYTES+1]};
    logic second_same, third_same, fourth_same;
    assign second_same = seen[0] && !lasts[0] && seen[1];
    assign third_same  = second_same && !lasts[1] && seen[2];
    assign fourth_same = third_same && !lasts[2] && seen[3];
    assign same        = {fourth_same, third_same, second_same, seen[0]};

    logic [4*DATA_W-1:0] window;
    logic [4*BYTES-1:0]  have;
    logic                ended, bad, full;
    assign window = {beat_at[3][DATA_W-1:0], beat_at[2][DATA_W-1:0], beat_at[1][DATA_W-1:0], beat_at[0][DATA_W-1:0]};
    assign have = {
        same[3] ? beat_at[3][DATA_W +: BYTES] : {BYTES{1'b0}},
        same[2] ? beat_at[2][DATA_W +: BYTES] : {BYTES{1'b0}},
        same[1] ? beat_at[1][DATA_W +: BYTES] : {BYTES{1'b0}},
        same[0] ? beat_at[0][DATA_W +: BYTES] : {BYTES{1'b0}}
    };
    assign ended = |(same & lasts);
    assign bad   = |(same & lasts & users);
    assign full  = same[3];

    logic         ip, shallow, many, settled;
    logic [3:0]   words;
    logic [5:0]   at_place;
    logic [15:0]  ip_sum, l4_sum;
    logic [159:0] from_l4;
    transport_parser transport (
        .head(window[767:0]), .have(have[95:0]), .fine(fine), .six(six), .tags(tags), .place(place), .left(left),
        .known(known_kind), .tcp(tcp), .ip(ip), .ip_sum(ip_sum), .many(many), .shallow(shallow), .words(words),
        .at_place(at_place), .l4_sum(l4_sum), .from_l4(from_l4), .settled(settled)
    );
    logic [5:0] dscp;
    assign dscp = six ? first_word[11:6] : first_word[7:2];

    logic [7:0] l3, l4;
    assign l3 = 8'd14 + {4'd0, tags, 2'd0};
    assign l4 = 8'd14 + {1'b0, place, 2'd0};

    // Enough is known of a frame when it has ended, or its IP header says that it is none of ours, or its
    // transport header.
    logic       marked, short_one, known, ends_so, candidate;
    assign marked      = ip && dscp == 6'd63;
    assign short_one   = ip && short_end;
    // The headers and a token are all that the packet has.
    assign ends_so     = shallow && left == 16'd8 + {10'd0, words, 2'd0};
    assign candidate   = short_one && ends_so && ended && have[{{(BEAT_W - 5){1'b0}}, token_place, 2'd0} + (BEAT_W + 2)'(21)];
    // IP headers may end behind the 64 bytes after which most packets are known.
    assign known       = ended || full || (have[63] && (!fine || (ip && (!short_one || (settled && !ends_so)))));

    // The end of frames that are no candidates is looked up too, as it passes.
    logic               first_reg, ip_reg;
    logic [16:0]        end_reg, tail_byte;
    logic [15:0]        beat_reg, beat;
    logic [55:0]        tail_reg;
    logic [DATA_W+55:0] joined;
    logic [BEAT_W-1:0]  tail_at;
    logic               at_tail, c_ip;
    logic [63:0]        tail, tail_token, head_token;
    localparam logic [15:0] MOST_BEATS = 16'(17'h1ffff >> BEAT_W);

    assign beat      = first_reg ? 16'd0 : beat_reg;
    assign c_ip      = first_reg ? ip : ip_reg;
    assign joined    = {beat_at[0][DATA_W-1:0], first_reg ? 56'd0 : tail_reg};
    assign tail_byte = first_reg ? first_tail : end_reg;
    assign tail_at   = tail_byte[BEAT_W-1:0];
    assign at_tail   = c_ip && 16'(tail_byte >> BEAT_W) == beat && beat_at[0][DATA_W + 32'(tail_at)];
    assign tail      = joined[{1'b0, tail_at, 3'd0} +: 64];
    // A token ends within 128 bytes, at any width, and stands at a place: one that ends elsewhere is none.
    logic [1167:0] reach;
    logic [63:0]   head;
    assign reach     = {144'd0, window[1023:0]};
    assign head      = reach[32*32'(token_place) + 112 +: 64];
    assign tail_token = {tail[7:0], tail[15:8], tail[23:16], tail[31:24], tail[39:32], tail[47:40], tail[55:48], tail[63:56]};
    assign head_token = {head[7:0], head[15:8], head[23:16], head[31:24], head[39:32], head[47:40], head[55:48], head[63:56]};
    assign look_token = first_reg && reaches_on ? head_token : tail_token;

    // Record of the entry.
    logic [7:0]  r_at;
    logic [5:0]  r_dscp;
    logic        r_tcp;
    logic [15:0] r_parked, r_whole, r_ip_whole, r_ip_sliced;
    logic        r_six;
    assign {r_at, r_dscp, r_six, r_tcp, r_parked, r_whole, r_ip_whole, r_ip_sliced} = look_record;

    // The decision, at the first beat.
    localparam logic [1:0] IDLE = 2'd0, PASS = 2'd1, DROP = 2'd2, SPLICE = 2'd3;
    logic [1:0]  state_reg;
    logic        out_ready, idle, decide, tokened, fitting, long_one, waits, early, splice, dropped, passes;
    logic [15:0] waited_reg;
    logic [16:0] whole_length;
    assign whole_length = 17'(at) - 17'(l3) + 17'(r_parked);
    assign idle      = state_reg == IDLE;
    assign tokened   = candidate && enable && (marked || look_ours);
    assign fitting   = look_waits && r_tcp == tcp;
    assign long_one  = whole_length > 17'(mtu);
    assign waits     = tokened && fitting && !bad && !look_complete;
    assign early     = waits && waited_reg >= patience;
    assign decide    = idle && seen[0] && known && out_ready && (!waits || early);
    assign splice    = tokened && fitting && !bad && look_complete && !long_one;
    assign dropped   = enable && (tokened ? !splice : marked);
    assign passes    = !splice && !dropped;
    assign claim     = decide && splice;
    assign release_it = decide && tokened && fitting && !bad && look_complete && long_one;

    // What goes on while a payload leaves.
    logic               ahead_reg, drained_reg, c_six, six_reg, c_tcp, tcp_reg;
    logic [BEAT_W-1:0]  move_reg;
    logic [7:0]         at_reg, l3_reg, l4_reg, c_at, c_l3, c_l4;
    logic [16:0]        total_reg, total, c_total;
    logic [ENTRY_W-1:0] entry_reg;
    logic [ROW_W-1:0]   row_reg;
    logic [DATA_W-1:0]  before_reg;
    logic [15:0]        f_first_reg, f_length_reg, f_udp_reg, f_ip_sum_reg;
    logic [15:0]        f_first, f_length, f_udp, f_ip_sum;
    logic               starting, splicing, emits, header_beat, body_beat, has_all, out_last;
    logic [16:0]        base;

    // Fields of the whole packet.
    logic [5:0]  new_dscp;
    logic [15:0] new_first, new_length, new_udp, new_ip_sum, new_l4_sum, changed_ip, changed_l4;
    assign new_dscp   = dscp == 6'd63 ? r_dscp : dscp;
    assign new_first  = six ? {first_word[15:12], new_dscp, first_word[5:0]} : {first_word[15:8], new_dscp, first_word[1:0]};
    assign new_length = length_word - 16'd8 + r_parked;
    assign new_udp    = 16'd8 + r_parked;
    // That of IPv4, in which the DSCP stands two bits up; the length grows by `r_parked` less 8.
    assign changed_ip = ~fold(32'(16'(~ip_sum)) + 32'(16'(~first_word)) + 32'({first_word[15:8], 6'd0, first_word[1:0]})
                              + 32'({new_dscp, 2'd0}) + 32'd65527 + 32'(r_parked));
    // Where the mark still stands and the sum is that of the sliced packet, the header is off by what slicing
    // changed and nothing else. With another DSCP it can be the same sum by chance: what else the function
    // changed made up for it.
    assign new_ip_sum = dscp == 6'd63 && ip_sum == r_ip_sliced ? r_ip_whole : changed_ip;
    // The checksum of the transport header: it is needed behind the first beat, so that there is a cycle
    // more.
    logic [15:0] l4_sum_reg, whole_reg, sliced_reg, c_l4_sum, c_whole, c_sliced;
    assign {c_l4_sum, c_whole, c_sliced} = LATER || !idle ? {l4_sum_reg, whole_reg, sliced_reg} : {l4_sum, r_whole, look_sum};
    assign changed_l4 = ~fold(32'(16'(~c_l4_sum)) + 32'(c_sliced) + 32'(16'(~c_whole)));
    // A UDP packet that came without a checksum leaves without one.
    assign new_l4_sum = !c_tcp && (c_l4_sum == 16'd0 || c_whole == 16'd0) ? 16'd0
                      : c_l4_sum == c_sliced ? c_whole
                      : !c_tcp && changed_l4 == 16'd0 ? 16'hffff : changed_l4;

    // How far the payload moves: to the right by `move` bytes within its rows; to the left needs a row ahead.
    logic [BEAT_W-1:0] move;
    logic              ahead, at_once;
    assign move    = at[BEAT_W-1:0] - r_at[BEAT_W-1:0];
    assign ahead   = at[BEAT_W-1:0] < r_at[BEAT_W-1:0];
    assign at_once = !ahead && 17'(at) >= 17'(BYTES);

    // While nothing leaves, the packet at hand is the one that might.
    assign starting  = claim;
    assign splicing  = state_reg == SPLICE;
    assign c_at      = idle ? at : at_reg;
    assign c_l3      = idle ? l3 : l3_reg;
    assign c_l4      = idle ? l4 : l4_reg;
    assign c_six     = idle ? six : six_reg;
    assign c_tcp     = idle ? tcp : tcp_reg;
    assign total     = 17'(at) + 17'(look_bytes);
    assign c_total   = !idle ? total_reg : LATER ? '1 : total;
    assign f_first   = idle ? new_first : f_first_reg;
    assign f_length  = idle ? new_length : f_length_reg;
    assign f_udp     = LATER || !idle ? f_udp_reg : new_udp;
    assign f_ip_sum  = idle ? new_ip_sum : f_ip_sum_reg;

    assign base        = 17'(beat) << BEAT_W;
    // Bytes of headers are in this beat; bytes of payload are.
    assign header_beat = base < 17'(c_at);
    assign body_beat   = base + 17'(BYTES) > 17'(c_at);
    assign has_all     = (!header_beat || seen[0]) && !(body_beat && ahead_reg);
    assign emits       = (starting && at_once) || (splicing && out_ready && has_all);

    logic [DATA_W-1:0]   out_data, spliced_data, built;
    logic [2*DATA_W-1:0] two_rows;
    logic [BYTES-1:0]    out_keep, kept;
    logic                out_valid, out_user, hidden;
    logic [16:0]         offset;
    logic [15:0]         word;
    integer              i;
    assign two_rows = {row_data, before_reg} >> {(BEAT_W + 1)'(BYTES) - {1'b0, move_reg}, 3'd0};
    always_comb begin
        built = '0;
        for (i = 0; i < BYTES / 2; i = i + 1) begin
            offset = base + 17'(2*i);
            word   = {beat_at[0][16*i +: 8], beat_at[0][16*i+8 +: 8]};
            if (offset == 17'(c_l3)) word = f_first;
            if (offset == 17'(c_l3) + (c_six ? 17'd4 : 17'd2)) word = f_length;
            if (!c_six && offset == 17'(c_l3) + 17'd10) word = f_ip_sum;
            if (!c_tcp && offset == 17'(c_l4) + 17'd4) word = f_udp;
            if (offset == 17'(c_l4) + (c_tcp ? 17'd16 : 17'd6)) word = new_l4_sum;
            if (offset >= 17'(c_at)) word = {two_rows[16*i +: 8], two_rows[16*i+8 +: 8]};
            // Nothing behind the end, where another payload's bytes may stand in the row.
            built[16*i +: 8]   = offset < c_total ? word[15:8] : 8'd0;
            built[16*i+8 +: 8] = offset + 17'd1 < c_total ? word[7:0] : 8'd0;
        end
        spliced_data = built;
    end

    logic untouched;
    assign untouched = (decide && passes) || (state_reg == PASS && seen[0] && out_ready);
    assign hidden    = untouched && enable && at_tail && look_ours;
    logic hidden_reg;
    always_comb begin
        kept = '0;
        for (i = 0; i < BYTES; i = i + 1) begin
            kept[i] = untouched ? beat_at[0][DATA_W + i] : base + 17'(i) < c_total;
        end
        out_keep = kept;
    end
    assign out_valid = untouched || emits;
    assign out_data  = untouched ? beat_at[0][DATA_W-1:0] : spliced_data;
    assign out_last  = untouched ? lasts[0] : base + 17'(BYTES) >= c_total;
    assign out_user  = untouched && (users[0] || hidden || (!first_reg && hidden_reg));

    // Beats go when they have left, or been dropped, or are behind the headers of a packet whose payload
    // leaves.
    assign pop = untouched || (decide && dropped) || (state_reg == DROP && seen[0]) || (emits && header_beat)
                 || (splicing && !drained_reg && seen[0] && !header_beat);

    logic prefetch;
    assign prefetch  = splicing && ahead_reg;
    assign row_ren   = claim || prefetch || (emits && body_beat);
    assign row       = claim ? '0 : row_reg;
    assign row_entry = claim ? look_entry : entry_reg;

    logic ends, all_drained;
    assign ends        = emits && out_last;
    assign all_drained = drained_reg || (pop && lasts[0]);
    assign leave       = splicing && ends;
    assign leave_entry = entry_reg;

    always_ff @(posedge clk) begin
        // It doesn't go round where the way out stands still for longer than the patience.
        waited_reg <= idle && waits && seen[0] && known && !decide ? waited_reg + 16'(waited_reg != 16'hffff) : 16'd0;
        if (untouched || emits || (decide && dropped)) begin
            beat_reg   <= beat == MOST_BEATS ? beat : beat + 16'd1;
            tail_reg   <= beat_at[0][DATA_W-1 -: 56];
            hidden_reg <= hidden || (!first_reg && hidden_reg);
            first_reg  <= 1'b0;
        end
        if (decide) begin
            {end_reg, ip_reg} <= {first_tail, ip};
            if (splice) state_reg <= SPLICE;
            else if (dropped) state_reg <= lasts[0] ? IDLE : DROP;
            else state_reg <= lasts[0] ? IDLE : PASS;
        end else if ((state_reg == PASS || state_reg == DROP) && pop && lasts[0]) begin
            state_reg <= IDLE;
        end
        if ((decide && !splice && lasts[0]) || ((state_reg == PASS || state_reg == DROP) && pop && lasts[0])) first_reg <= 1'b1;
        if (starting) begin
            {at_reg, l3_reg, l4_reg, six_reg, tcp_reg} <= {at, l3, l4, six, tcp};
            {total_reg, entry_reg, move_reg, ahead_reg} <= {total, look_entry, move, ahead};
            {f_first_reg, f_length_reg, f_udp_reg, f_ip_sum_reg} <= {new_first, new_length, new_udp, new_ip_sum};
            {l4_sum_reg, whole_reg, sliced_reg} <= {l4_sum, r_whole, look_sum};
            row_reg     <= ROW_W'(1);
            drained_reg <= 1'b0;
            first_reg   <= 1'b0;
            if (!at_once) beat_reg <= 16'd0;
        end
        if (splicing) begin
            if (pop && lasts[0]) drained_reg <= 1'b1;
            if (prefetch || (emits && body_beat)) begin
                before_reg <= row_data;
                row_reg    <= row_reg + 1'b1;
            end
            if (prefetch) ahead_reg <= 1'b0;
            if (ends) begin
                state_reg <= all_drained ? IDLE : DROP;
                first_reg <= all_drained;
            end
        end
        if (rst) begin
            state_reg  <= IDLE;
            first_reg  <= 1'b1;
            waited_reg <= 16'd0;
        end
    end

    logic refused;
    assign refused    = decide && tokened && !bad && !look_waits;
    // The last of them first.
    assign events = {
        hidden,
        decide && tokened && bad,
        decide && early,
        release_it,
        decide && enable && ((!tokened && marked) || (tokened && !bad && look_waits && r_tcp != tcp)),
        refused && look_refusal == 3'd4,
        refused && look_refusal == 3'd3,
        refused && look_refusal == 3'd2,
        refused && look_refusal == 3'd1,
        refused && look_refusal == 3'd0,
        decide && passes,
        claim
    };

`ifdef VERILATOR
    // For lint alone: a simulator would compute it at every change of every bit.
    logic unused;
    assign unused = &{1'b0, many, r_six, r_at, window, ip_words, at_place, from_l4};
`endif

    skid_buffer #(.WIDTH(BEAT)) output_register (
        .clk(clk), .rst(rst), .s_valid(out_valid), .s_ready(out_ready), .s_data({out_user, out_last, out_keep, out_data}),
        .m_valid(m_axis_tvalid), .m_ready(m_axis_tready), .m_data({m_axis_tuser, m_axis_tlast, m_axis_tkeep, m_axis_tdata})
    );
endmodule

`default_nettype wire
