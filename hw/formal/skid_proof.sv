// The boundary of every stream: what is offered stays offered and the same until it is taken, beats leave in
// order, and none is lost or doubled.
`default_nettype none

module skid_proof (
    input wire logic       clk,
    input wire logic       s_valid,
    input wire logic [7:0] s_data,
    input wire logic       m_ready
);
    logic rst = 1'b1;
    always_ff @(posedge clk) rst <= 1'b0;

    logic       s_ready, m_valid;
    logic [7:0] m_data;
    skid_buffer #(.WIDTH(8)) dut (.*);

    // Beats held, and a beat that is followed from its way in.
    (* anyconst *) logic [7:0] followed;
    logic [1:0] held = 2'd0, ahead = 2'd0;
    logic       under_way = 1'b0, past = 1'b0;
    logic [7:0] last_data;
    logic       last_valid = 1'b0, last_ready = 1'b0;
    logic       comes, goes;
    assign comes = s_valid && s_ready && !rst;
    assign goes  = m_valid && m_ready && !rst;

    (* anyseq *) logic follow;
    always_ff @(posedge clk) begin
        past       <= !rst;
        last_valid <= m_valid;
        last_ready <= m_ready;
        last_data  <= m_data;
        held     <= held + 2'(comes) - 2'(goes);
        if (comes && follow && !under_way && s_data == followed) begin
            under_way <= 1'b1;
            ahead    <= held - 2'(goes);
        end else if (under_way && goes) begin
            ahead <= ahead - 2'd1;
            if (ahead == 2'd0) under_way <= 1'b0;
        end
    end

    always_comb begin
        if (!rst) begin
            assert (held <= 2'd2);
            assert (m_valid == (held != 2'd0));
            assert (s_ready == (held != 2'd2));
            if (past && last_valid && !last_ready) assert (m_valid && m_data == last_data);
            if (under_way) assert (ahead < held);
            if (under_way && ahead == 2'd0) assert (m_valid && m_data == followed);
        end
    end
endmodule
